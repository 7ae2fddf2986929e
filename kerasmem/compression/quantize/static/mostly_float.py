"""Warning before calibration if few multiplications would have int8 inputs."""

import math
import warnings
from collections import Counter
from typing import Any

from kerasmem.compression.quantize.static.plan import EXCLUDED, StaticPlan
from kerasmem.errors import KerasMemWarning
from kerasmem.graph.calls import Call
from kerasmem.graph.layer_table import entry_of

_LEAST_SHARE = 0.5
_MOST_NAMED = 3


def warn_if_mostly_float(plan: StaticPlan) -> None:
    """Warn if less than half of the multiplications have int8 inputs.

    Excluded layers do not count.
    """
    counts = Counter[str]()
    for call in plan.calls.calls:
        if plan.reasons.get(call.name) != EXCLUDED:
            is_float = call.name in plan.reasons
            counts[call.layer.name if is_float else ""] += _multiplications(plan, call)
    total, integers = counts.total(), counts.pop("", 0)
    if integers >= _LEAST_SHARE * total:
        return
    largest = [(name, n) for name, n in counts.most_common(_MOST_NAMED) if n]
    layer_shares = ", ".join(f"{name!r} ({n / total:.0%})" for name, n in largest)
    warnings.warn(
        f"With 'int8-static', {integers / total:.0%} of the multiplications have int8 "
        f"inputs. Layers that stay float: {layer_shares}. Next: use Quantize('int8'), "
        "which stores the weights in int8 and rounds no activation.",
        KerasMemWarning,
        stacklevel=3,
    )


def _multiplications(plan: StaticPlan, call: Call) -> int:
    """Return the number of kernel multiplications of a call for one sample.

    Unknown axes count as one position. A layer of unknown kind, such as a recurrent
    layer, counts its kernels at each position of its longer inputs or outputs.
    """
    entry = entry_of(call.operation)
    if entry.kernel == "embedding":
        return 0
    weights = getattr(call.operation, "weights", ())
    kernels = [w for w in weights if len(w.shape) > 1 and "bias" not in w.name]
    size = sum(math.prod(w.shape) for w in kernels)
    first = getattr(call.operation, "data_format", None) == "channels_first"
    inputs, outputs = (
        max(
            (_positions(plan.calls.tensors[n].shape, first) for n in numbers), default=1
        )
        for numbers in (call.inputs, call.outputs)
    )
    return size * (max if entry.kernel is None else min)(inputs, outputs)


def _positions(shape: tuple[Any, ...], channels_first: bool) -> int:  # noqa: FBT001
    axes = shape[2:] if channels_first else shape[1:-1]
    return math.prod(size or 1 for size in axes)
