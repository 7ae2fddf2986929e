"""Eight bits for an activation, rounded at random, on NumPy arrays: the reference.

Sources: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation
Compressed Training", 2021; Liu et al., "GACT: Activation Compressed Training for
Generic Network Architectures", 2022.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GROUP = 256
"""Most entries that share a scale."""

FEWEST = 32
"""Entries a sample must have: with fewer, the scales outweigh what is saved."""

HIGHEST = 252
"""Finite entries have codes from 0 to this; those above are NaN and the infinities."""
NAN, POSITIVE, NEGATIVE = 253, 254, 255

STEPS = HIGHEST - 1
"""Scales from a group's least entry to its largest: one less than there are, so that
all can be shifted until zero is a code."""

FINEST = 2.0**-20
"""Least scale, relative to the largest entry: finer than float32 can do with."""
SMALLEST = 2.0**-120
"""Least scale: its inverse is a float32 too."""

NOISE_LEVELS = 4096
"""Noise is the middle of one of so many parts of [0, 1): never close enough to either
end that an error of float32 could move a code."""


@dataclass(frozen=True)
class Grouping:
    """How the entries of a tensor are dealt into groups.

    Args:
        leading: number of axes, from the first on, that stay as they are.
        entries: entries at each place of those axes, a row.
        count: groups in a row.
        length: entries in a group, up to `GROUP`.
    """

    leading: int
    entries: int
    count: int
    length: int

    @property
    def padding(self) -> int:
        """Entries in the last group of a row that are not there, less than `count`."""
        return self.count * self.length - self.entries


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


def grouping(shape: Sequence[int | None]) -> Grouping:
    """Return how a tensor is grouped.

    A group lies within one sample, so the batch may be of any length and spread over
    devices. Of a shape with more axes of unknown length, the known ones at its end
    make a row.

    Example:
        >>> grouping((None, 30, 30))
        Grouping(leading=1, entries=900, count=4, length=225)
    """
    leading = min(1, len(shape))
    for axis, size in enumerate(shape):
        if size is None:
            leading = axis + 1
    entries = math.prod(size for size in shape[leading:] if size is not None)
    count = max(1, -(-entries // GROUP))
    return Grouping(leading, entries, count, -(-entries // count))


def packed_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of a tensor of this shape once it is packed.

    Example:
        >>> packed_bytes((2, 16, 16))
        528
    """
    groups = grouping(shape)
    rows = math.prod(shape[: groups.leading])
    return rows * groups.count * (groups.length + 2 * 4)


def pack(values: np.ndarray, noise: np.ndarray) -> Packed:
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


def unpack(packed: Packed, shape: Sequence[int]) -> np.ndarray:
    """Return the float32 tensor of `shape` that `packed` stands for."""
    codes = packed.codes.astype(np.float32)
    values = (codes - packed.zeros) * packed.scales
    for code, value in ((NAN, np.nan), (POSITIVE, np.inf), (NEGATIVE, -np.inf)):
        values[packed.codes == code] = value
    groups = grouping(shape)
    rows = values.reshape(*shape[: groups.leading], -1)[..., : groups.entries]
    return rows.reshape(shape)
