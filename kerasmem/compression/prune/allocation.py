"""How many zeros each weight gets, where they are not ranked together.

Source: Evci, Gale, Menick, Castro and Elsen, "Rigging the Lottery: Making All Tickets
Winners", 2020 (Erdos-Renyi and its version for kernels).
"""

import math
from collections.abc import Sequence

ERDOS_RENYI, ERDOS_RENYI_KERNEL = "erdos_renyi", "erdos_renyi_kernel"


def erdos_renyi(
    shapes: Sequence[Sequence[int]], sparsity: float, *, kernel: bool
) -> list[float]:
    """Return a sparsity per weight, lower where a weight is small; `sparsity` in all.

    The share that stays is proportional to the sum of the axes over their product,
    and at most 1.

    Args:
        shapes: those of the weights, of two axes or more.
        sparsity: share of all entries to remove, in [0, 1).
        kernel: whether all axes count, or only the last two, inputs and outputs.

    Example:
        >>> [round(s, 3) for s in erdos_renyi([(8, 8), (64, 64)], 0.8, kernel=False)]
        [0.0, 0.812]
    """
    sizes = [math.prod(shape) for shape in shapes]
    counted = [tuple(shape) if kernel else tuple(shape)[-2:] for shape in shapes]
    raw = [sum(axes) / math.prod(axes) for axes in counted]
    full: set[int] = set()
    while True:
        rest = [i for i in range(len(sizes)) if i not in full]
        room = (1 - sparsity) * sum(sizes) - sum(sizes[i] for i in full)
        share = room / sum(raw[i] * sizes[i] for i in rest) if rest else 0.0
        over = {i for i in rest if share * raw[i] >= 1}
        if not over:
            return [0.0 if i in full else 1 - share * raw[i] for i in range(len(raw))]
        full |= over
