"""Storage formats of a weight: encoding, decoding and size."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import keras
import numpy as np

from kerasmem.compression.account import powers
from kerasmem.compression.quantize.math import (
    affine_codes_of,
    codes_of,
    dequantize,
    finite,
    pack,
    packed_length,
    positive_scales,
    quantize_affine,
    quantize_closely,
    scales_of,
    short_scales,
)
from kerasmem.compression.quantize.normal_float import (
    levels,
    normal_codes,
    normal_values,
)
from kerasmem.compression.quantize.rows import (
    Rows,
    unpack_half,
    unpack_int3,
    unpack_int4,
)
from kerasmem.errors import ModelError
from kerasmem.graph.values import to_numpy

BITS = {"int8": 8, "int4": 4, "int3": 3, "nf4": 4, "float16": 16, "bfloat16": 16}
"""Bits per entry by the name of the type."""


@dataclass(frozen=True)
class Coded:
    """An encoded weight.

    Args:
        codes: Codes, int8. Shape of the weight, or of its `Rows` for int3, int4 and
            groups. A byte contains two int4 codes; three bytes contain eight int3
            codes. For 16 bits, the converted weight.
        scales: Scales, float32 or bfloat16, broadcastable to the layout of the codes.
            None for 16 bits.
        zero_points: Zero points, int8, in the shape of the scales. None if all are
            zero.
        input_scales: Scale of each input, float32, broadcastable to the layout of the
            codes. None if there are no input scales.
    """

    codes: Any
    scales: Any = None
    zero_points: Any = None
    input_scales: Any = None

    def map(self, function: Any) -> "Coded":
        """Apply `function` to every part that is not None."""
        return Coded(*(None if x is None else function(x) for x in vars(self).values()))

    @property
    def parts(self) -> tuple[Any, ...]:
        """Parts that are not None."""
        return tuple(part for part in vars(self).values() if part is not None)

    def with_parts(self, parts: Sequence[Any]) -> "Coded":
        """Return a copy with `parts` replaced in order."""
        each = iter(parts)
        return self.map(lambda _: next(each))


@dataclass(frozen=True)
class Coding:
    """Storage format of a weight.

    Args:
        dtype: One of `BITS`.
        axes: Axes that an output channel sums over.
        granularity: Unit that shares a scale: `"channel"`, `"tensor"`, or `"group"` for
            `group_size` entries of a channel.
        group_size: Maximum number of entries in a group.
        symmetric: Whether codes have no zero points.
        by_input: Whether the weight has input scales.
        scale_dtype: `"float32"` or `"bfloat16"`, the dtype of the scales.
    """

    dtype: str
    axes: tuple[int, ...]
    granularity: str = "channel"
    group_size: int = 128
    symmetric: bool = True
    by_input: bool = False
    scale_dtype: str = "float32"

    @classmethod
    def from_json(cls, config: dict[str, Any]) -> "Coding":
        """Create an instance from the output of `to_json`."""
        return cls(**{**config, "axes": tuple(config["axes"])})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible data."""
        return {**asdict(self), "axes": list(self.axes)}

    @property
    def bits(self) -> int:
        """Bits per entry."""
        return BITS[self.dtype]

    @property
    def is_normal(self) -> bool:
        """Whether codes are indices of unevenly spaced levels."""
        return self.dtype == "nf4"

    def scales_of(self, largest: np.ndarray) -> np.ndarray:
        """Return the float32 scales of symmetric codes from the largest entries."""
        if self.is_normal:
            return positive_scales(largest)
        return scales_of(largest, self.bits)

    def codes_of(self, values: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the nearest symmetric int8 codes of finite values in stored layout."""
        if self.is_normal:
            return normal_codes(values, scales)
        return codes_of(values, scales, self.bits)

    def values_of(self, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the float32 values of symmetric codes."""
        return dequantize(levels()[codes & 15] if self.is_normal else codes, scales)

    def rows(self, shape: tuple[int, ...]) -> Rows | None:
        """Return the stored layout. None if the weight keeps its own shape."""
        if self.bits == 16 or (self.bits == 8 and self.granularity != "group"):
            return None
        size = self.group_size if self.granularity == "group" else None
        return Rows(shape, self.axes, size)

    def stored(self, shape: tuple[int, ...]) -> Coded:
        """Return the shape and dtype of every stored part of a weight."""
        if self.bits == 16:
            return Coded((shape, self.dtype))
        rows, axes = self.rows(shape), self.scale_axes(shape)
        codes = list(shape if rows is None else rows.stored_shape)
        scales = tuple(1 if axis in axes else n for axis, n in enumerate(codes))
        if rows is not None:
            codes[rows.axis] = packed_length(codes[rows.axis], self.bits)
        zeros = None if self.symmetric else (scales, "int8")
        inputs = None
        if self.by_input:
            ones = np.empty(self.input_shape(shape), np.int8)
            inputs = (self.laid_out(ones, np).shape, "float32")
        return Coded((tuple(codes), "int8"), (scales, self.scale_dtype), zeros, inputs)

    def input_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the input scales of a weight."""
        return tuple(n if axis in self.axes else 1 for axis, n in enumerate(shape))

    def scale_axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the axes of the stored layout that share a scale."""
        rows = self.rows(shape)
        if self.granularity == "tensor":
            laid_out = shape if rows is None else rows.stored_shape
            return tuple(range(len(laid_out)))
        return self.axes if rows is None else (rows.axis,)

    def laid_out(self, values: Any, ops: Any) -> Any:
        """Return a weight in stored layout. `ops` is `numpy` or `keras.ops`."""
        rows = self.rows(tuple(values.shape))
        return values if rows is None else rows.store(values, ops)

    def encode(
        self,
        values: np.ndarray,
        scales: np.ndarray | None = None,
        *,
        closely: bool = False,
        input_scales: np.ndarray | None = None,
    ) -> Coded:
        """Encode a weight as NumPy arrays.

        Args:
            values: Weight to encode.
            scales: Scales of symmetric codes. Larger values are clipped. If None,
                computed from the largest entries.
            closely: Whether computed scales minimize the squared error.
            input_scales: Float32 array of shape `input_shape`. If None, ones.

        Raises:
            ModelError: If `values` contains NaN or infinity, or exceeds the range of a
                16-bit type.
        """
        if self.bits == 16:
            return Coded(self._halved(finite(values)))
        options = {"closely": closely, "input_scales": input_scales}
        _, codes, rest, inputs = self._laid_out_codes(values, scales, **options)
        return self._packed(codes, rest, inputs, values.shape)

    def encode_and_compare(
        self, values: np.ndarray, scales: np.ndarray | None = None, **options: Any
    ) -> tuple[Coded, tuple[float, float]]:
        """Encode a weight and measure the error.

        Returns:
            The result of `encode`, and the sums of squares of the entries and of the
            errors.
        """
        if self.bits == 16:
            halves = self._halved(finite(values))
            return Coded(halves), powers(values, halves)
        exact, codes, rest, inputs = self._laid_out_codes(values, scales, **options)
        wide = rest[0].astype(np.float32, copy=False)
        if len(rest) > 1:
            decoded_values = dequantize(codes, wide, rest[1])
        else:
            decoded_values = self.values_of(codes, wide)
        if inputs is not None:
            exact, decoded_values = exact * inputs, decoded_values * inputs
        coded_values = self._packed(codes, rest, inputs, values.shape)
        return coded_values, powers(exact, decoded_values)

    def _laid_out_codes(
        self,
        values: np.ndarray,
        scales: np.ndarray | None,
        *,
        closely: bool = False,
        input_scales: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray | None]:
        axes, inputs = self.scale_axes(values.shape), None
        if self.by_input:
            if input_scales is None:
                input_scales = np.ones(self.input_shape(values.shape), np.float32)
            values, inputs = values / input_scales, self.laid_out(input_scales, np)
        values = self.laid_out(values, np)
        codes, *rest = self._encoded(values, axes, scales, closely=closely)
        if self.scale_dtype != "float32":
            codes, *rest = self._with_short_scales(values, *rest)
        return values, codes, rest, inputs

    def _packed(
        self,
        codes: np.ndarray,
        rest: list[np.ndarray],
        inputs: np.ndarray | None,
        shape: tuple[int, ...],
    ) -> Coded:
        rows = self.rows(shape)
        if rows is not None:
            codes = pack(codes, rows.axis, self.bits)
        return replace(Coded(codes, *rest), input_scales=inputs)

    def free_axis(self, shape: tuple[int, ...]) -> int | None:
        """Return an axis along which slices share no scale, or None."""
        if self.granularity == "tensor" and self.bits != 16:
            return None
        axes = () if self.bits == 16 else self.axes
        return next((n for n in range(len(shape)) if n not in axes), None)

    def joined(self, parts: Sequence[Coded], shape: tuple[int, ...]) -> Coded:
        """Join encoded slices along `free_axis` to the encoded weight."""
        if len(parts) == 1:
            return parts[0]
        axis, rows = self.free_axis(shape), self.rows(shape)
        if rows is not None and axis is not None:
            axis = rows.stored_axis(axis)
        inputs = parts[0].input_scales
        several = (replace(part, input_scales=None).parts for part in parts)
        whole = [np.concatenate(each, axis) for each in zip(*several, strict=True)]
        return replace(Coded(*whole), input_scales=inputs)

    def decode(
        self,
        coded: Coded,
        rows: Rows | None,
        dtype: str = "float32",
        half: int | None = None,
    ) -> Any:
        """Return the float weight, or a part of it, from encoded tensors.

        `rows` is the layout of the codes. Arithmetic is float32, cast to `dtype` at the
        end. With `half`, 0 or 1, only the even or odd entries of a 4-bit weight are
        returned, with the layout `rows.halved()`.
        """
        codes, input_scales = coded.codes, coded.input_scales
        if self.bits == 16:
            return keras.ops.cast(codes, dtype)
        if rows is not None and half is not None:
            codes = unpack_half(codes, half)
            if input_scales is not None:
                every_second = (*(slice(None),) * rows.axis, slice(half, None, 2))
                input_scales = input_scales[every_second]
            rows = rows.halved()
        elif rows is not None and self.bits < 8:
            unpack = unpack_int4 if self.bits == 4 else unpack_int3
            codes = unpack(codes, rows.axis, rows.length)
        exact = normal_values(codes) if self.is_normal else codes
        exact = keras.ops.cast(exact, "float32")
        if coded.zero_points is not None:
            exact = exact - keras.ops.cast(coded.zero_points, "float32")
        exact = exact * keras.ops.cast(coded.scales, "float32")
        if input_scales is not None:
            exact = exact * input_scales
        if rows is not None:
            exact = rows.restore(exact, keras.ops)
        return keras.ops.cast(exact, dtype)

    def decoded(self, coded: Coded, shape: tuple[int, ...]) -> np.ndarray:
        """Return the float32 weight of a shape from encoded NumPy arrays."""
        tensors = coded.map(keras.ops.convert_to_tensor)
        return to_numpy(self.decode(tensors, self.rows(shape)))

    def steps(self, values: np.ndarray, like: Coded | None = None) -> np.ndarray:
        """Return the float32 step between adjacent integer codes of each entry.

        `like` contains the scales. By default they come from the largest entries.
        """
        rows = self.rows(values.shape)
        codes = self.laid_out(np.ones(values.shape, np.int8), np)
        if rows is not None:
            codes = pack(codes, rows.axis, self.bits)
        like = self.encode(values) if like is None else like
        apart = replace(like, codes=codes, zero_points=None)
        steps = self.decoded(apart, values.shape)
        return np.broadcast_to(steps, values.shape)

    def describe(self, shape: tuple[int, ...]) -> str:
        """Return a short description of the storage format of a weight."""
        if self.bits == 16:
            return self.dtype
        count = math.prod(self.stored(shape).scales[0])
        more = "" if self.symmetric else " and zero points"
        more += " and scales of inputs" if self.by_input else ""
        short = "" if self.scale_dtype == "float32" else f"{self.scale_dtype} "
        return f"{self.dtype} with {count} {short}scale{'s' * (count != 1)}{more}"

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of all stored parts of a weight."""
        parts = self.stored(shape).parts
        return sum(math.prod(own) * np.dtype(dtype).itemsize for own, dtype in parts)

    def _encoded(
        self,
        values: np.ndarray,
        axes: tuple[int, ...],
        scales: np.ndarray | None,
        *,
        closely: bool,
    ) -> tuple[np.ndarray, ...]:
        if scales is None and closely:
            symmetric = self.symmetric
            return quantize_closely(values, axes, self.bits, symmetric=symmetric)
        if scales is None and not self.symmetric:
            return quantize_affine(values, axes, self.bits)
        exact = finite(values).astype(np.float32, copy=False)
        if scales is None:
            largest = np.abs(exact).max(axes, keepdims=True, initial=0.0)
            scales = self.scales_of(largest)
        scales = scales.astype(np.float32, copy=False)
        return self.codes_of(exact, scales), scales

    def _with_short_scales(
        self, values: np.ndarray, scales: np.ndarray, *zeros: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        values, wide = values.astype(np.float32, copy=False), short_scales(scales)
        if zeros:
            codes = affine_codes_of(values, wide, *zeros, bits=self.bits)
        else:
            codes = self.codes_of(values, wide)
        return codes, wide.astype(np.dtype(self.scale_dtype)), *zeros

    def _halved(self, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # checked below
            halves = values.astype(np.dtype(self.dtype))
        overflows = np.count_nonzero(~np.isfinite(halves.astype(np.float32)))
        if overflows:
            raise ModelError(
                f"{overflows} of {values.size} weights are too large for {self.dtype}. "
                f"Received: a weight of {np.abs(values).max():.3g}. Next: use "
                "scheme='bfloat16' or 'int8'."
            )
        return halves
