"""How one weight is stored in fewer bits, and what it then stands for."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.math import (
    codes_of,
    finite,
    pack_int4,
    quantize,
    quantize_affine,
    quantize_closely,
)
from kerasmem.errors import ModelError
from kerasmem.graph.values import to_numpy


@dataclass(frozen=True)
class Rows:
    """A weight with all that one output channel sums over on one axis, cut in groups.

    A weight of shape `(*lead, *summed, *trail)` becomes one of shape
    `(*lead, groups, length, *trail)`. Summed axes that do not lie side by side are
    brought to the front first. Where the groups do not fill up, zeros follow.

    Args:
        shape: of the weight.
        axes: those that an output channel sums over, ascending.
        group_size: most entries in a group; None for one group.

    Example:
        >>> rows = Rows((3, 10, 4), (0, 1), group_size=16)
        >>> rows.groups, rows.length, rows.stored_shape
        (2, 15, (2, 15, 4))
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    group_size: int | None = None

    @property
    def _summed(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def groups(self) -> int:
        """Number of groups in each output channel, as even as they can be."""
        return math.ceil(self._summed / (self.group_size or max(self._summed, 1)))

    @property
    def length(self) -> int:
        """Number of entries in a group."""
        return math.ceil(self._summed / self.groups)

    @property
    def axis(self) -> int:
        """The axis of the stored weight along which a group lies."""
        return self._first + 1

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the stored weight, before anything is packed."""
        lead, trail = self._around
        return (*lead, self.groups, self.length, *trail)

    def stored_axis(self, axis: int) -> int:
        """Return where an axis that is not summed over lies in the stored weight."""
        place = self._order.index(axis)
        return place if place < self._first else place - len(self.axes) + 2

    def narrowed(self, axis: int, size: int) -> "Rows":
        """Return the layout of a part of the weight, `size` long along `axis`."""
        shape = tuple(size if i == axis else n for i, n in enumerate(self.shape))
        return replace(self, shape=shape)

    def store(self, values: Any, ops: Any) -> Any:
        """Return a weight as it is stored; `ops` is `numpy` or `keras.ops`."""
        lead, trail = self._around
        values = ops.transpose(values, self._order)
        values = ops.reshape(values, (*lead, self._summed, *trail))
        missing = self.groups * self.length - self._summed
        if missing:
            fill = [(0, missing if i == len(lead) else 0) for i in range(values.ndim)]
            values = ops.pad(values, fill)
        return ops.reshape(values, self.stored_shape)

    def restore(self, values: Any, ops: Any) -> Any:
        """Return the weight of what `store` made."""
        lead, trail = self._around
        total = self.groups * self.length
        values = ops.reshape(values, (*lead, total, *trail))
        if total != self._summed:
            values = values[(*(slice(None) for _ in lead), slice(self._summed))]
        order = self._order
        values = ops.reshape(values, tuple(self.shape[axis] for axis in order))
        if order == tuple(range(len(order))):
            return values
        return ops.transpose(values, [order.index(axis) for axis in range(len(order))])

    @property
    def _first(self) -> int:
        """Number of axes before those that are summed over, as they are stored."""
        first = self.axes[0] if self.axes else 0
        side_by_side = tuple(range(first, first + len(self.axes)))
        return first if self.axes == side_by_side else 0

    @property
    def _order(self) -> tuple[int, ...]:
        rest = [axis for axis in range(len(self.shape)) if axis not in self.axes]
        first = self._first
        return (*rest[:first], *self.axes, *rest[first:])

    @property
    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        shape = [self.shape[axis] for axis in self._order]
        return tuple(shape[: self._first]), tuple(shape[self._first + len(self.axes) :])


BITS = {"int8": 8, "int4": 4, "float16": 16, "bfloat16": 16}
"""Bits of an entry by the name of its type."""


@dataclass(frozen=True)
class Coded:
    """A weight in fewer bits.

    Args:
        codes: int8 in the weight's shape; for int4 and for groups as `Rows` lays them
            out, for int4 two in a byte; for 16 bits the weight itself.
        scales: float32, broadcasts against what is laid out; None for 16 bits.
        zero_points: int8, of the shape of the scales; None if all are zero.
    """

    codes: Any
    scales: Any = None
    zero_points: Any = None

    def map(self, function: Any) -> "Coded":
        """Return `function` of every part that is there."""
        parts = (self.codes, self.scales, self.zero_points)
        return Coded(*(None if x is None else function(x) for x in parts))

    @property
    def parts(self) -> tuple[Any, ...]:
        """The parts that are there."""
        every = (self.codes, self.scales, self.zero_points)
        return tuple(part for part in every if part is not None)


@dataclass(frozen=True)
class Coding:
    """How a weight is stored.

    Args:
        dtype: one of `BITS`.
        axes: axes that one output channel sums over.
        granularity: what shares a scale: a `"channel"`, all of a `"tensor"`, or a
            `"group"` of `group_size` entries of a channel.
        group_size: most entries in a group.
        symmetric: False for zero points beside the scales.
    """

    dtype: str
    axes: tuple[int, ...]
    granularity: str = "channel"
    group_size: int = 128
    symmetric: bool = True

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Coding":
        """Return what `to_json` told."""
        return cls(**{**config, "axes": tuple(config["axes"])})

    def to_json(self) -> dict[str, Any]:
        """Return this as plain data."""
        return {**asdict(self), "axes": list(self.axes)}

    @property
    def bits(self) -> int:
        """Bits of an entry."""
        return BITS[self.dtype]

    def rows(self, shape: tuple[int, ...]) -> Rows | None:
        """Return how entries are laid out, None for as they are."""
        if self.bits == 16 or (self.bits == 8 and self.granularity != "group"):
            return None
        size = self.group_size if self.granularity == "group" else None
        return Rows(shape, self.axes, size)

    def stored(self, shape: tuple[int, ...]) -> Coded:
        """Return the shape and the type of every part of a weight of a shape."""
        if self.bits == 16:
            return Coded((shape, self.dtype))
        rows, axes = self.rows(shape), self.scale_axes(shape)
        codes = list(shape if rows is None else rows.stored_shape)
        scales = tuple(1 if axis in axes else n for axis, n in enumerate(codes))
        if self.bits == 4 and rows is not None:
            codes[rows.axis] = -(-codes[rows.axis] // 2)
        zeros = None if self.symmetric else (scales, "int8")
        return Coded((tuple(codes), "int8"), (scales, "float32"), zeros)

    def scale_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the axes, of a weight of a shape as laid out, that share a scale."""
        rows = self.rows(shape)
        if self.granularity == "tensor":
            laid_out = shape if rows is None else rows.stored_shape
            return tuple(range(len(laid_out)))
        return self.axes if rows is None else (rows.axis,)

    def laid_out(self, values: Any, ops: Any) -> Any:
        """Return a weight as its codes lie; `ops` is `numpy` or `keras.ops`."""
        rows = self.rows(tuple(values.shape))
        return values if rows is None else rows.store(values, ops)

    def encode(
        self,
        values: np.ndarray,
        scales: np.ndarray | None = None,
        *,
        closely: bool = False,
    ) -> Coded:
        """Return NumPy arrays that stand for `values`.

        Args:
            values: the weight.
            scales: of symmetric codes, as they are stored: what is too large for them
                gets the last code. None for those of the largest entries.
            closely: whether scales that are not given are those of the least squared
                error.

        Raises:
            ModelError: if `values` holds NaN or infinity, or what 16 bits cannot hold.
        """
        if self.bits == 16:
            return Coded(self._halved(finite(values)))
        rows, axes = self.rows(values.shape), self.scale_axes(values.shape)
        values = self.laid_out(values, np)
        if scales is not None:
            codes, *rest = codes_of(finite(values), scales, self.bits), scales
        elif closely:
            codes, *rest = quantize_closely(
                values, axes, self.bits, symmetric=self.symmetric
            )
        else:
            encode = quantize if self.symmetric else quantize_affine
            codes, *rest = encode(values, axes, self.bits)
        if self.bits == 4 and rows is not None:
            codes = pack_int4(codes, rows.axis)
        return Coded(codes, *rest)

    def decode(self, coded: Coded, rows: Rows | None, dtype: str = "float32") -> Any:
        """Return the weight that tensors stand for, or the part of it they are.

        Args:
            coded: tensors.
            rows: how they are laid out, None for as the weight.
            dtype: of the result; the arithmetic is float32.
        """
        codes = coded.codes
        if self.bits == 16:
            return keras.ops.cast(codes, dtype)
        if self.bits == 4 and rows is not None:
            codes = unpack_int4(codes, rows.axis, rows.length)
        exact = keras.ops.cast(codes, "float32")
        if coded.zero_points is not None:
            exact = exact - keras.ops.cast(coded.zero_points, "float32")
        exact = exact * coded.scales
        if rows is not None:
            exact = rows.restore(exact, keras.ops)
        return keras.ops.cast(exact, dtype)

    def decoded(self, coded: Coded, shape: tuple[int, ...]) -> np.ndarray:
        """Return the float32 weight of a shape that NumPy arrays stand for."""
        tensors = coded.map(keras.ops.convert_to_tensor)
        return to_numpy(self.decode(tensors, self.rows(shape)))

    def steps(self, values: np.ndarray, scales: np.ndarray | None = None) -> np.ndarray:
        """Return what the codes of 4 or 8 bits of each entry are apart, float32.

        Args:
            values: the weight.
            scales: as they are stored; None for those of the largest entries.
        """
        rows = self.rows(values.shape)
        codes = self.laid_out(np.ones(values.shape, np.int8), np)
        if self.bits == 4 and rows is not None:
            codes = pack_int4(codes, rows.axis)
        if scales is None:
            scales = self.encode(values).scales
        steps = self.decoded(Coded(codes, scales), values.shape)
        return np.broadcast_to(steps, values.shape)

    def describe(self, shape: tuple[int, ...]) -> str:
        """Return in a few words how a weight of a shape is stored."""
        if self.bits == 16:
            return self.dtype
        count = math.prod(self.stored(shape).scales[0])
        zeros = "" if self.symmetric else " and zero points"
        return f"{self.dtype} with {count} scale{'s' * (count != 1)}{zeros}"

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes that all parts of a weight of a shape take."""
        parts = self.stored(shape).parts
        return sum(math.prod(own) * np.dtype(dtype).itemsize for own, dtype in parts)

    def _halved(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # it is looked for below
            halved = values.astype(np.dtype(self.dtype))
        lost = np.count_nonzero(~np.isfinite(halved.astype(np.float32)))
        if lost:
            raise ModelError(
                f"{lost} of {values.size} weights are too large for {self.dtype}. "
                f"Received: one of {np.abs(values).max():.3g}. Next: use "
                "scheme='bfloat16' or 'int8'."
            )
        return halved


def unpack_int4(packed: Any, axis: int, length: int) -> Any:
    """Return int8 codes of bytes that hold two each; the inverse of `pack_int4`.

    Args:
        packed: an int8 tensor.
        axis: the axis along which neighbors share a byte.
        length: number of codes along it.
    """
    ops = keras.ops
    four = ops.cast(4, "int8")
    high = ops.right_shift(packed, four)
    low = ops.right_shift(ops.left_shift(packed, four), four)
    both = ops.stack([low, high], axis=axis + 1)
    # What it looks up may be as open as a batch is.
    shape = ops.shape(packed)
    codes = ops.reshape(both, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
    if length == 2 * shape[axis]:
        return codes
    return codes[(*(slice(None) for _ in shape[:axis]), slice(length))]
