"""Eight bits for an activation, rounded at random, on NumPy arrays: the reference.

Sources: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation
Compressed Training", 2021; Liu et al., "GACT: Activation Compressed Training for
Generic Network Architectures", 2022.
"""

from dataclasses import dataclass

import numpy as np

from kerasmem.memory.compress_activations.store import (
    FINEST,
    HIGHEST,
    NAN,
    NEGATIVE,
    POSITIVE,
    SMALLEST,
    STEPS,
    grouping,
)


@dataclass(frozen=True)
class Packed:
    """A tensor in eight bits an entry, and eight more bytes a group.

    Args:
        codes: uint8, `(*leading axes, count, length)`.
        scales: float32, `(*leading axes, count, 1)`, positive.
        zeros: float32 of the same shape, whole numbers: the codes of zero.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray


def pack(values, noise):
    """Return `values` in eight bits an entry.

    Every finite entry becomes one of the two nearest multiples of its group's scale,
    by chance: the nearer, the likelier, so that it is right on average. Zeros, groups
    of one value, NaN and infinities are kept exactly.

    Args:
        values: floats of any shape, finite ones up to 1e38.
        noise: numbers from [0, 1), of a shape that broadcasts to the codes.
    """
    groups = grouping(values.shape)
    leading = values.shape[: groups.leading]
    rows = values.reshape(*leading, groups.entries).astype(np.float32)
    last = np.repeat(rows[..., -1:], groups.padding, axis=-1)
    whole = np.concatenate([rows, last], axis=-1)
    whole = whole.reshape(*leading, groups.count, groups.length)
    finite = np.isfinite(whole)
    known = np.where(finite, whole, np.float32(0))
    low, high = known.min(-1, keepdims=True), known.max(-1, keepdims=True)
    scales = np.maximum(high / np.float32(STEPS) - low / np.float32(STEPS), SMALLEST)
    scales = np.maximum(scales, np.maximum(high, -low) * np.float32(FINEST))
    zeros = np.ceil(-low / scales)
    exact = (known + zeros * scales) * (1 / scales)
    codes = np.clip(np.floor(exact + noise), 0, HIGHEST)
    special = np.where(whole > 0, POSITIVE, np.where(whole < 0, NEGATIVE, NAN))
    codes = np.where(finite, codes, special).astype(np.uint8)
    return Packed(codes, scales.astype(np.float32), zeros.astype(np.float32))


def unpack(packed, shape):
    """Return the float32 tensor of `shape` that `packed` stands for."""
    codes = packed.codes.astype(np.float32)
    values = (codes - packed.zeros) * packed.scales
    for code, value in ((NAN, np.nan), (POSITIVE, np.inf), (NEGATIVE, -np.inf)):
        values[packed.codes == code] = value
    groups = grouping(shape)
    rows = values.reshape(*shape[: groups.leading], -1)[..., : groups.entries]
    return rows.reshape(shape)
