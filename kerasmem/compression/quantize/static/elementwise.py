"""Sums and products of two tensors of codes, ReLU and leaky ReLU."""

from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static.base import IntegerLayer, centered
from kerasmem.compression.quantize.static.multiplier import fixed_point, times

_SHIFT = 20


@keras.saving.register_keras_serializable("kerasmem")
class IntegerAdd(IntegerLayer):
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
class IntegerMultiply(IntegerLayer):
    """The product of two tensors of codes."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of a list of two tensors of int8 codes."""
        one, two = self.input_codes
        product = centered(inputs[0], one.zero_point) * centered(
            inputs[1], two.zero_point
        )
        # In float32, as LiteRT multiplies them.
        factor = np.float32(one.scale) * np.float32(two.scale)
        return self.finished(
            _times(product, float(factor / np.float32(self.output_codes.scale)))
        )


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


def _times(integers: Any, factor: float) -> Any:
    return times(integers, *fixed_point(np.array(factor)))
