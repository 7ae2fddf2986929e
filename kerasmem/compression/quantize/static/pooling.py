"""Means and maxima of codes over windows, and zeros around tensors of codes."""

import math
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.static.base import IntegerLayer, centered
from kerasmem.compression.quantize.static.product import fixed_point, times
from kerasmem.compression.quantize.static.products import padded
from kerasmem.graph.layer_table import kind

MOST_AVERAGED = 1 << 14
"""So many codes float32 averages without a doubt about the integer that they sum to."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerMean(IntegerLayer):
    """The mean over height and width.

    Args:
        keepdims: whether these axes stay, with length 1.
    """

    arguments = ("keepdims",)

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


class _IntegerPooling(IntegerLayer):
    """A pooling layer whose output has the codes of its input.

    Args:
        pool_size: height and width of the window, or its length.
        strides: of the window.
        padding: `"valid"` or `"same"`.
    """

    arguments = (
        "pool_size",
        "strides",
        "padding",
    )

    def __init__(
        self, *, pool_size: Any, strides: Any, padding: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pool_size, self.strides = tuple(pool_size), tuple(strides)
        self.padding = padding

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

    arguments = ("pads",)

    def __init__(self, *, pads: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pads = tuple(map(tuple, pads))

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        zero = float(self.output_codes.zero_point)
        numbers = ops.cast(inputs, "float32")
        return ops.cast(ops.pad(numbers, self.pads, constant_values=zero), "int8")
