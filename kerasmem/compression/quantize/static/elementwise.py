"""Sums and products of two tensors of codes, ReLU and leaky ReLU."""

from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static.base import IntegerLayer, centered
from kerasmem.compression.quantize.static.multiplier import fixed_point, times

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

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "hides": self.hides}


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

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "slope": self.slope}


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
