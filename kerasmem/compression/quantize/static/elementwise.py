"""Sums and products of two tensors of codes, and activations of one.

A code has only 256 values: most activations are looked up. Hard SiLU,
`x * relu6(x + 3) / 6`, is computed in 16 bits as LiteRT does.

Source: Howard and others, "Searching for MobileNetV3", 2019.
"""

import abc
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
)
from kerasmem.compression.quantize.static.product import fixed_point, times

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
        return self.finished(_times(total, twice / step))


@keras.saving.register_keras_serializable("kerasmem")
class IntegerMultiply(_IntegerPair):
    """The product of two tensors of codes.

    Args:
        hides: whether what a mask hides is no factor, as in `keras.layers.Multiply`,
            which gives the other one there, and zero where masks hide both.
    """

    arguments = ("hides",)

    def __init__(self, *, hides: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hides = hides

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
        return self.finished(steps)


@keras.saving.register_keras_serializable("kerasmem")
class IntegerReLU(IntegerLayer):
    """The codes in the scale of the output, cut off as the activation does."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        (codes,) = self.input_codes
        factor = codes.scale / self.output_codes.scale
        return self.finished(_times(centered(inputs, codes.zero_point), factor))


@keras.saving.register_keras_serializable("kerasmem")
class IntegerLeakyReLU(IntegerLayer):
    """The codes in the scale of the output, negative ones times a slope.

    Args:
        slope: from 0.
    """

    arguments = ("slope",)

    def __init__(self, *, slope: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.slope = slope

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        (codes,) = self.input_codes
        numbers = centered(inputs, codes.zero_point)
        # In float32, as LiteRT multiplies them.
        scale, step = np.float32(codes.scale), np.float32(self.output_codes.scale)
        plain = _times(numbers, float(scale / step))
        sloped = _times(numbers, float(scale * np.float32(self.slope) / step))
        return self.finished(keras.ops.where(numbers >= 0, plain, sloped))


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

    arguments = ("function",)

    def __init__(self, *, function: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

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
