"""Means and maxima of codes."""

import math
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static.base import IntegerLayer, centered
from kerasmem.compression.quantize.static.multiplier import fixed_point, times
from kerasmem.compression.quantize.static.windows import padded

MOST_AVERAGED = 1 << 14
"""So many codes float32 averages without a doubt about the integer that they sum to."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerMean(IntegerLayer):
    """The mean over height and width.

    Args:
        keepdims: whether these axes stay, with length 1.
    """

    def __init__(self, *, keepdims: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keepdims = keepdims

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
        return self.finished(steps)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {**super().get_config(), "keepdims": self.keepdims}


class _IntegerPooling(IntegerLayer):
    """A pooling layer whose output has the codes of its input.

    Args:
        pool_size: height and width of the window, or its length.
        strides: of the window.
        padding: `"valid"` or `"same"`.
    """

    def __init__(
        self, *, pool_size: Any, strides: Any, padding: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pool_size, self.strides = tuple(pool_size), tuple(strides)
        self.padding = padding

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            **super().get_config(),
            "pool_size": self.pool_size,
            "strides": self.strides,
            "padding": self.padding,
        }

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
