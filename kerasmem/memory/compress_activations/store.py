"""8-bit activations with stochastic rounding on the current backend.

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
"""Maximum number of entries per scale."""

FEWEST = 32
"""Minimum entries per sample. With fewer, the scales need more bytes than are saved."""

HIGHEST = 252
"""Largest code of a finite entry. Higher codes are NaN and infinities."""
NAN, POSITIVE, NEGATIVE = 253, 254, 255

STEPS = HIGHEST - 1
"""Number of scales from the minimum to the maximum of a group.

One less than the codes allow, so that a shift can make zero a code.
"""

FINEST = 2.0**-20
"""Minimum scale relative to the largest entry, near float32 precision."""
SMALLEST = 2.0**-120
"""Minimum scale whose inverse is a float32."""

NOISE_LEVELS = 4096
"""Number of noise levels, each the center of an interval of [0, 1).

The centers are far enough from 0 and 1 that float32 errors cannot change a code.
"""


@dataclass(frozen=True)
class Grouping:
    """Grouping of the entries of a tensor.

    Args:
        leading: Number of leading axes that are not grouped.
        entries: Number of entries in a row, which is one index of the leading axes.
        count: Groups per row.
        length: Entries per group, at most `GROUP`.
    """

    leading: int
    entries: int
    count: int
    length: int

    @property
    def padding(self) -> int:
        """Number of padding entries in the last group of a row, less than `count`."""
        return self.count * self.length - self.entries


def grouping(shape: Sequence[int | None]) -> Grouping:
    """Return the grouping of a tensor.

    A group is within one sample, so the batch may have any length and be distributed
    over devices. If more axes have unknown lengths, the known trailing axes form a row.

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
    """Return the bytes of a packed tensor of this shape.

    Example:
        >>> packed_bytes((2, 16, 16))
        528
    """
    groups = grouping(shape)
    rows = math.prod(shape[: groups.leading])
    return rows * groups.count * (groups.length + 2 * 4)


_GOLDEN = 0.6180339887498949
"""Golden ratio, whose multiples modulo 1 are evenly distributed."""


def rounding_noise(known: Any, seed: int) -> Any:
    """Return noise in [0, 1), one number per entry.

    The noise of an entry is the sum, modulo 1, of a number for its group and a number
    for its position. Any two entries are therefore independent over all draws. Pairwise
    independence is enough for the variance of a sum of entries.

    `known` is a finite float32 tensor of shape `(..., count, length)`.
    """
    random = np.random.default_rng(seed)
    length = known.shape[-1]
    starts = ops.convert_to_tensor(random.random(length), dtype="float32")
    # Odd strides reach every level modulo a power of two.
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
    """Quantize a tensor. Returns uint8 codes, float32 scales and float32 zero points.

    Each finite entry is rounded to one of the two nearest multiples of its group's
    scale. The probabilities make the result unbiased. Zeros, groups of one value, NaN
    and infinities are exact.
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
    """Dequantize the result of `pack` to a tensor of `shape` and `dtype`."""
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
    """Stores arguments in 8 bits per entry.

    `packed` contains argument indices.
    """

    packed: frozenset[int]
    seed: int
    residuals = Residuals.EIGHT_BITS

    def applies_to(self, index: int, tensor: Tensor) -> bool:
        """Return whether the argument is packed and large enough."""
        # TensorFlow may know less of a shape in a step than in the model.
        return index in self.packed and grouping(tuple(tensor.shape)).entries >= FEWEST

    def pack(self, tensor: Tensor) -> tuple[Any, ...]:
        """Return codes, scales and zero points."""
        return pack(tensor, grouping(tuple(tensor.shape)), self.seed)

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return the rounded activation."""
        shape = [size if isinstance(size, int) else None for size in like.shape]
        return unpack(packed, grouping(shape), like.shape, like.dtype)


@dataclass(frozen=True)
class EmptyStore:
    """Stores no values, for a segment whose gradient needs none."""

    dropped: frozenset[int]
    residuals = Residuals.NO_FLOATS

    def applies_to(self, index: int, tensor: Tensor) -> bool:  # noqa: ARG002
        """Return whether the argument is dropped."""
        return index in self.dropped

    def pack(self, tensor: Tensor) -> tuple[Any, ...]:
        """Return one zero, to keep the dependency of the gradient."""
        return (ops.zeros((), dtype=tensor.dtype),)

    def unpack(self, packed: tuple[Any, ...], like: Like) -> Any:
        """Return zeros."""
        return ops.broadcast_to(packed[0], like.shape)
