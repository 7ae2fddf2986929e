"""Eight bits for an activation, rounded at random, on the running backend.

Sources: Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation
Compressed Training", 2021; Liu et al., "GACT: Activation Compressed Training for
Generic Network Architectures", 2022.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from kerasmem.backends.recompute import Like
from kerasmem.graph.activation_policy import Residuals
from kerasmem.types import Tensor

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


_GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, are spread evenly."""


def rounding_noise(known: Any, seed: int) -> Any:
    """Return numbers from [0, 1) for the groups of a tensor, one an entry.

    An entry's is the sum, modulo 1, of one for its group and one for its place in the
    group, so that over all draws any two entries are independent of each other. This is
    all it takes for the error of a sum of entries to vary as if all of them were.

    Args:
        known: float32, finite, `(..., count, length)`.
        seed: of what is drawn beforehand.
    """
    random = np.random.default_rng(seed)
    length = known.shape[-1]
    starts = ops.convert_to_tensor(random.random(length), dtype="float32")
    # Odd, so that modulo a power of two they leave no level out.
    strides = random.integers(NOISE_LEVELS // 2, size=length) * 2 + 1
    strides = ops.convert_to_tensor(strides, dtype="float32")
    sums = ops.sum(known, axis=-1, keepdims=True)
    bits = ops.bitwise_and(ops.view(sums, dtype="int32"), NOISE_LEVELS - 1)
    numbers = ops.cast(bits, "float32") / NOISE_LEVELS
    first = _level(ops.sum(numbers) + random.random())
    second = _fraction(first * random.integers(1, NOISE_LEVELS) + random.random())
    stride = ops.floor(second * (NOISE_LEVELS // 2)) * 2 + 1
    groups = _level(numbers + _spread(numbers)) * stride + first
    places = _level(starts + first * strides) + 0.5 / NOISE_LEVELS
    both = _fraction(groups) + places
    return both - ops.floor(both)


def _spread(like: Any) -> Any:
    places = ops.cumsum(ops.reshape(ops.ones_like(like), (-1,)))
    return ops.reshape(_fraction(places * _GOLDEN), ops.shape(like))


def _fraction(x: Tensor) -> Any:
    return x - ops.floor(x)


def _level(x: Tensor) -> Any:
    return ops.floor(_fraction(x) * NOISE_LEVELS) / NOISE_LEVELS


_LARGEST = {"float16": 65504.0}


def pack(tensor: Tensor, groups: Grouping, seed: int) -> tuple[Any, Any, Any]:
    """Return uint8 codes, float32 scales and the float32 codes of zero.

    Every finite entry becomes one of the two nearest multiples of its group's scale,
    by chance: the nearer, the likelier, so that it is right on average. Zeros, groups
    of one value, NaN and infinities are kept exactly.

    Args:
        tensor: floats of up to 32 bits.
        groups: what `grouping` says of its shape.
        seed: of the rounding.
    """
    whole = _grouped(ops.cast(tensor, "float32"), groups)
    finite = ops.isfinite(whole)
    values = ops.where(finite, whole, 0.0)
    low = ops.min(values, axis=-1, keepdims=True)
    high = ops.max(values, axis=-1, keepdims=True)
    scales = ops.maximum(high / STEPS - low / STEPS, SMALLEST)
    scales = ops.maximum(scales, ops.maximum(high, -low) * FINEST)
    zeros = ops.ceil(-low / scales)
    exact = (values + zeros * scales) * (1.0 / scales)
    codes = ops.floor(exact + rounding_noise(values, seed))
    codes = ops.clip(codes, 0, HIGHEST)
    infinite = ops.where(whole < 0, float(NEGATIVE), float(NAN))
    special = ops.where(whole > 0, float(POSITIVE), infinite)
    codes = ops.where(finite, codes, special)
    return ops.cast(codes, "uint8"), scales, zeros


def unpack(
    packed: Sequence[Any], groups: Grouping, shape: Sequence[Any], dtype: str
) -> Any:
    """Return the tensor of `shape` and `dtype` that `pack` made `packed` of."""
    codes, scales, zeros = packed
    codes = ops.cast(codes, "float32")
    values = (codes - zeros) * scales
    if dtype in _LARGEST:
        values = ops.clip(values, -_LARGEST[dtype], _LARGEST[dtype])
    infinite = ops.where(codes == POSITIVE, float("inf"), float("-inf"))
    special = ops.where(codes == NAN, float("nan"), infinite)
    values = ops.where(codes > HIGHEST, special, values)
    rows = ops.reshape(values, (*shape[: groups.leading], groups.count * groups.length))
    return ops.reshape(ops.cast(rows[..., : groups.entries], dtype), shape)


def _grouped(tensor: Tensor, groups: Grouping) -> Any:
    leading = ops.shape(tensor)[: groups.leading]
    rows = ops.reshape(tensor, (*leading, groups.entries))
    if groups.padding:
        last = ops.repeat(rows[..., -1:], groups.padding, axis=-1)
        rows = ops.concatenate([rows, last], axis=-1)
    return ops.reshape(rows, (*leading, groups.count, groups.length))


@dataclass(frozen=True)
class PackedStore:
    """Eight bits an entry.

    Args:
        packed: numbers of the arguments that are stored so.
        seed: of the rounding.
    """

    packed: frozenset[int]
    seed: int
    residuals = Residuals.EIGHT_BITS

    def applies_to(self, index: int, tensor: Tensor) -> bool:
        """Return whether the argument is packed, and of a length that is worth it."""
        # Within a step TensorFlow may know less of a shape than the model does.
        return index in self.packed and grouping(tuple(tensor.shape)).entries >= FEWEST

    def pack(self, tensor: Tensor) -> tuple[Any, ...]:
        """Return codes, scales and the codes of zero."""
        return pack(tensor, grouping(tuple(tensor.shape)), self.seed)

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return the activation, rounded."""
        shape = [size if isinstance(size, int) else None for size in like.shape]
        return unpack(packed, grouping(shape), like.shape, like.dtype)


@dataclass(frozen=True)
class EmptyStore:
    """Nothing at all, for a segment whose gradient needs no values.

    Args:
        dropped: numbers of the arguments that are not stored.
    """

    dropped: frozenset[int]
    residuals = Residuals.NO_FLOATS

    def applies_to(self, index: int, tensor: Tensor) -> bool:  # noqa: ARG002
        """Return whether the argument is dropped."""
        return index in self.dropped

    def pack(self, tensor: Tensor) -> tuple[Any, ...]:
        """Return one zero: what is made of it waits for the gradient, as it must."""
        return (ops.zeros((), dtype=tensor.dtype),)

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return zeros."""
        return ops.broadcast_to(packed[0], like.shape)
