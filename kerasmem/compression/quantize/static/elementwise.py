"""Integer layers without a kernel: sums, products, activations, pooling, padding.

A code has only 256 values: most activations are looked up. Hard SiLU,
`x * relu6(x + 3) / 6`, is computed in 16 bits as LiteRT does.

Source: Howard and others, "Searching for MobileNetV3", 2019.
"""

import abc
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static.base import (
    LEAST,
    MOST,
    Codes,
    IntegerLayer,
    centered,
    fixed_point,
    times,
)
from kerasmem.compression.quantize.static.products import padded
from kerasmem.graph.layer_table import kind

_SHIFT = 20


class _IntegerPair(IntegerLayer):
    """A layer of two tensors, with a mask where both have one."""

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Return what one mask or the other shows, None if one is missing."""
        masks = super().compute_mask(inputs, previous_mask)
        if masks is None or any(mask is None for mask in masks):
            return None
        return keras.ops.logical_or(*masks)


@keras.saving.register_keras_serializable("kerasmem")
class IntegerAdd(_IntegerPair):
    """The sum of two tensors of codes."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of a list of two tensors of int8 codes."""
        twice = 2 * max(codes.scale for codes in self.input_codes)
        total = sum(
            _times(centered(x, codes.zero_point) * (1 << _SHIFT), codes.scale / twice)
            for x, codes in zip(inputs, self.input_codes, strict=True)
        )
        step = self.output_codes.scale * (1 << _SHIFT)
        return self.as_output_codes(_times(total, twice / step))


@keras.saving.register_keras_serializable("kerasmem")
class IntegerMultiply(_IntegerPair):
    """The product of two tensors of codes.

    Args:
        hides: whether what a mask hides is no factor, as in `keras.layers.Multiply`,
            which gives the other one there, and zero where masks hide both.
    """

    hides: bool = False

    def call(self, inputs: Any, mask: Any = None) -> Any:
        """Return int8 codes of a list of two tensors of int8 codes."""
        one, two = self.input_codes
        first, second = (
            centered(x, codes.zero_point)
            for x, codes in zip(inputs, self.input_codes, strict=True)
        )
        # In float32, as LiteRT multiplies them.
        factor = np.float32(one.scale) * np.float32(two.scale)
        step = np.float32(self.output_codes.scale)
        steps = _times(first * second, float(factor / step))
        if self.hides and mask is not None:
            alone = (
                _times(x, codes.scale / self.output_codes.scale)
                for x, codes in ((first, one), (second, two))
            )
            steps = _where_shown(steps, tuple(alone), mask)
        return self.as_output_codes(steps)


@keras.saving.register_keras_serializable("kerasmem")
class IntegerReLU(IntegerLayer):
    """The codes in the scale of the output, cut off as the activation does."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        (codes,) = self.input_codes
        factor = codes.scale / self.output_codes.scale
        return self.as_output_codes(_times(centered(inputs, codes.zero_point), factor))


@keras.saving.register_keras_serializable("kerasmem")
class IntegerLeakyReLU(IntegerLayer):
    """The codes in the scale of the output, negative ones times a slope.

    Args:
        slope: from 0.
    """

    slope: float

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        (codes,) = self.input_codes
        numbers = centered(inputs, codes.zero_point)
        # In float32, as LiteRT multiplies them.
        scale, step = np.float32(codes.scale), np.float32(self.output_codes.scale)
        plain = _times(numbers, float(scale / step))
        sloped = _times(numbers, float(scale * np.float32(self.slope) / step))
        return self.as_output_codes(keras.ops.where(numbers >= 0, plain, sloped))


def _where_shown(product: Any, alone: tuple[Any, Any], masks: Any) -> Any:
    """Return a product, or one factor alone where a mask hides the other."""
    ops = keras.ops
    one, two = (None if m is None else ops.expand_dims(m, -1) for m in masks)
    if one is not None:
        product = ops.where(one, product, alone[1])
    if two is not None:
        both = ops.zeros_like(product)
        first = alone[0] if one is None else ops.where(one, alone[0], both)
        product = ops.where(two, product, first)
    return product


def _times(integers: Any, factor: float) -> Any:
    return times(integers, *fixed_point(np.array(factor)))


FUNCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Codes]] = {
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), Codes(1 / 256, -128)),
    "tanh": (np.tanh, Codes(1 / 128, 0)),
}
"""The activations, with the codes that LiteRT gives them; it takes no others."""


class IntegerLookup(IntegerLayer):
    """A function of one code, looked up; a subclass says in `table` which."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        table = ops.convert_to_tensor(self.table())
        return ops.take(table, ops.cast(inputs, "int32") - LEAST, axis=0)

    @abc.abstractmethod
    def table(self) -> np.ndarray:
        """Return the code for every code from -128, int8."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerTable(IntegerLookup):
    """A sigmoid or hyperbolic tangent of codes.

    Args:
        function: a key of `FUNCTIONS`.
    """

    function: str

    def table(self) -> np.ndarray:
        """Return the code for every code from -128, int8."""
        (codes,) = self.input_codes
        steps = np.arange(LEAST, MOST + 1, dtype=np.float32) - codes.zero_point
        values = FUNCTIONS[self.function][0](np.float32(codes.scale) * steps)
        scaled = values.astype(np.float32) / np.float32(self.output_codes.scale)
        # Halves away from zero, as C rounds.
        nearest = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
        shifted = nearest + self.output_codes.zero_point
        return np.clip(shifted, LEAST, MOST).astype(np.int8)


_BITS = 7
"""An input less its zero point has nine bits: so many are left of 16."""

_ONE = 1 << 15


@keras.saving.register_keras_serializable("kerasmem")
class IntegerHardSilu(IntegerLookup):
    """A hard SiLU of codes."""

    def table(self) -> np.ndarray:
        """Return the code for every code from -128, int8."""
        (codes,), output = self.input_codes, self.output_codes
        step = np.float32(codes.scale) / np.float32(1 << _BITS)
        x = (np.arange(LEAST, MOST + 1) - codes.zero_point) << _BITS
        mantissa, exponent = _short(step / np.float32(output.scale))
        product = _truncated(_gate(x, step) * _high(x, mantissa))
        steps = _divided(product, max(-exponent, 0)) + output.zero_point
        return np.clip(steps, LEAST, MOST).astype(np.int8)


def _gate(x: np.ndarray, step: np.float32) -> np.ndarray:
    """Return `relu6(x + 3) / 6` in steps of 2 ** -15, for `x` in steps of `step`."""
    mantissa, exponent = _short(step / np.float32(3 / _ONE))
    if exponent > 0:
        # The last bit is shifted behind the product: what is cut off here, is there.
        shifted = _saturated(x << min(exponent - 1, 15))
        thirds = _saturated(_high(shifted, mantissa) << 1)
    else:
        thirds = _divided(_high(x, mantissa), -exponent)
    return (thirds + _ONE) >> 1


def _short(number: np.float32) -> tuple[int, int]:
    """Return a multiplier as `mantissa * 2 ** (exponent - 15)`, of 16 bits."""
    mantissa, exponent = (int(x) for x in fixed_point(np.float64(number)))
    return min((mantissa + _ONE) >> 16, _ONE - 1), exponent


def _high(x: np.ndarray, mantissa: int) -> np.ndarray:
    """Return `x * mantissa / 2 ** 15`, rounded, halves up."""
    product = x * mantissa
    nudge = np.where(product >= 0, _ONE // 2, 1 - _ONE // 2)
    return _truncated(product + nudge)


def _truncated(x: np.ndarray) -> np.ndarray:
    """Return `x / 2 ** 15` without what is behind the point."""
    return np.sign(x) * (np.abs(x) >> 15)


def _divided(x: np.ndarray, bits: int) -> np.ndarray:
    """Return `x / 2 ** bits`, rounded, halves away from zero."""
    half = (1 << bits) >> 1
    return np.sign(x) * ((np.abs(x) + half) >> bits)


def _saturated(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -_ONE, _ONE - 1)


MOST_AVERAGED = 1 << 14
"""So many codes float32 averages without a doubt about the integer that they sum to."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerMean(IntegerLayer):
    """The mean over height and width.

    Args:
        keepdims: whether these axes stay, with length 1.
    """

    keepdims: bool = False

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        (codes,) = self.input_codes
        count = inputs.shape[1] * inputs.shape[2]
        numbers = centered(inputs, codes.zero_point)
        total = keras.ops.sum(numbers, axis=(1, 2), keepdims=self.keepdims)
        mantissa, exponent = fixed_point(codes.scale / self.output_codes.scale)
        # As LiteRT divides it: in the mantissa, which keeps as many bits as it can, and
        # no more than leave a shift of 31.
        bits = min(count.bit_length() - 1, 32, 31 + int(exponent))
        divided = (int(mantissa) << bits) // count
        steps = times(
            total, np.array(divided, np.int32), np.array(exponent - bits, np.int32)
        )
        return self.as_output_codes(steps)


class _IntegerPooling(IntegerLayer):
    """A pooling layer whose output has the codes of its input.

    Args:
        pool_size: height and width of the window, or its length.
        strides: of the window.
        padding: `"valid"` or `"same"`.
    """

    pool_size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str

    def padded(self, pictures: Any, value: float) -> Any:
        """Return the pictures with what the padding adds."""
        if self.padding == "valid":
            return pictures
        return padded(pictures, self.pool_size, self.strides, value)


@keras.saving.register_keras_serializable("kerasmem")
class IntegerMaxPooling(_IntegerPooling):
    """A `keras.layers.MaxPooling2D` or `MaxPooling1D` of codes."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        pictures = self.padded(ops.cast(inputs, "float32"), -128.0)
        largest = ops.max_pool(
            pictures, self.pool_size, self.strides, data_format="channels_last"
        )
        return ops.cast(largest, "int8")


@keras.saving.register_keras_serializable("kerasmem")
class IntegerAveragePooling(_IntegerPooling):
    """A `keras.layers.AveragePooling2D` or `AveragePooling1D` of codes."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        one = ops.ones((1, *inputs.shape[1:-1], 1))
        total, count = (
            self._sums(self.padded(x, 0.0)) for x in (ops.cast(inputs, "float32"), one)
        )
        half = count // 2
        # Halves away from zero; the code of zero is averaged like any other.
        size = (ops.abs(total) + half) // count
        return ops.cast(ops.sign(total) * size, "int8")

    def _sums(self, pictures: Any) -> Any:
        ops = keras.ops
        means = ops.average_pool(
            pictures, self.pool_size, self.strides, data_format="channels_last"
        )
        return ops.cast(ops.round(means * math.prod(self.pool_size)), "int32")


Pads = tuple[tuple[int, int], ...]
"""Entries before and after, for every axis, the batch first."""


def pads_of(operation: Any, rank: int) -> Pads:
    """Return what a padding adds to a tensor.

    Args:
        operation: `ZeroPadding1D`, `ZeroPadding2D` or the operation of `ops.pad`.
        rank: number of axes of the tensor.
    """
    if kind(operation) == "ops.Pad":
        pads = [tuple(map(int, pair)) for pair in operation.pad_width]
        pads *= rank if len(pads) == 1 else 1
    else:
        own = operation.padding
        pads = [(0, 0), *([own] if rank == 3 else own), (0, 0)]
    return tuple((before, after) for before, after in pads)


@keras.saving.register_keras_serializable("kerasmem")
class IntegerPadding(IntegerLayer):
    """A `ZeroPadding1D`, `ZeroPadding2D` or `keras.ops.pad` of codes.

    Args:
        pads: entries before and after, for every axis, the batch first.
    """

    pads: Pads

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        zero = float(self.output_codes.zero_point)
        numbers = ops.cast(inputs, "float32")
        return ops.cast(ops.pad(numbers, self.pads, constant_values=zero), "int8")
