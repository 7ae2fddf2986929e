"""How one weight is stored in fewer bits, and what it then stands for."""

from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.math import (
    codes_of,
    finite,
    pack_int4,
    quantize,
    quantize_affine,
)
from kerasmem.compression.quantize.rows import Rows
from kerasmem.errors import ModelError
from kerasmem.graph.values import to_numpy

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
        rows, axes = self.rows(shape), self.axes
        if rows is not None:
            shape, axes = rows.stored_shape, (rows.axis,)
        if self.granularity == "tensor":
            axes = tuple(range(len(shape)))
        scales = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
        if self.bits == 4 and rows is not None:
            half = -(-shape[rows.axis] // 2)
            shape = (*shape[: rows.axis], half, *shape[rows.axis + 1 :])
        zeros = None if self.symmetric else (scales, "int8")
        return Coded((shape, "int8"), (scales, "float32"), zeros)

    def encode(self, values: np.ndarray, scales: np.ndarray | None = None) -> Coded:
        """Return NumPy arrays that stand for `values`.

        Args:
            values: the weight.
            scales: of symmetric codes, as they are stored: what is too large for them
                gets the last code. None for those of the largest entries.

        Raises:
            ModelError: if `values` holds NaN or infinity, or what 16 bits cannot hold.
        """
        if self.bits == 16:
            return Coded(self._halved(finite(values)))
        rows = self.rows(values.shape)
        axes = self.axes
        if rows is not None:
            values, axes = rows.store(values, np), (rows.axis,)
        if self.granularity == "tensor":
            axes = tuple(range(values.ndim))
        if scales is not None:
            codes, *rest = codes_of(finite(values), scales, self.bits), scales
        else:
            make = quantize if self.symmetric else quantize_affine
            codes, *rest = make(values, axes, self.bits)
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

    def steps(self, values: np.ndarray) -> np.ndarray:
        """Return what the codes of 4 or 8 bits of each entry are apart, float32."""
        rows = self.rows(values.shape)
        ones = np.ones(values.shape, np.int8)
        codes = ones if rows is None else rows.store(ones, np)
        if self.bits == 4 and rows is not None:
            codes = pack_int4(codes, rows.axis)
        steps = self.decoded(Coded(codes, self.encode(values).scales), values.shape)
        return np.broadcast_to(steps, values.shape)

    def describe(self, coded: Coded) -> str:
        """Return in a few words how a weight is stored."""
        if coded.scales is None:
            return self.dtype
        count = int(np.prod(coded.scales.shape))
        zeros = "" if coded.zero_points is None else " and zero points"
        return f"{self.dtype} with {count} scale{'s' * (count != 1)}{zeros}"

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
