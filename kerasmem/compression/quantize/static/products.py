"""Layers with a kernel of codes: Dense, convolutions, normalization.

Windows over pictures are where TensorFlow and LiteRT put them.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras

from kerasmem.compression.quantize.static.product import IntegerProduct, exact_sums


class _IntegerConvolution(IntegerProduct):
    """A convolution over pictures or sequences with channels last.

    Args:
        strides: of height and width, or of the length.
        padding: `"valid"`, `"same"`, or for sequences `"causal"`.
        dilation: of height and width, or of the length.
    """

    arguments = (
        "strides",
        "padding",
        "dilation",
    )

    def __init__(
        self,
        *,
        strides: Any = (1, 1),
        padding: str = "valid",
        dilation: Any = (1, 1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.strides, self.dilation = tuple(strides), tuple(dilation)
        self.padding = padding

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        pictures = ops.cast(inputs, "float32")
        zero = float(self.input_codes[0].zero_point)
        if self.padding == "same":
            size = [
                1 + rate * (length - 1)
                for rate, length in zip(self.dilation, self.kernel_shape, strict=False)
            ]
            pictures = padded(pictures, size, self.strides, zero)
        elif self.padding == "causal":
            pads = [(0, 0), (self.before, 0), (0, 0)]
            pictures = ops.pad(pictures, pads, constant_values=zero)
        return self.rescaled(self.products(pictures))

    @property
    def before(self) -> int:
        """How many steps causal padding puts before a sequence."""
        return self.dilation[0] * (self.kernel_shape[0] - 1)

    def _settings(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "padding": "valid",
            "data_format": "channels_last",
            "dilation_rate": self.dilation,
        }


class _IntegerFullConvolution(_IntegerConvolution):
    """A convolution in which every channel goes into every other."""

    def products(self, pictures: Any) -> Any:
        """Return the sums of products, int32."""
        window = self.kernel_shape[:-2]
        return exact_sums(
            lambda x, kernel: keras.ops.conv(x, kernel, **self._settings()),
            pictures,
            self.kernel,
            axis=len(window),
            each=math.prod(window),
        )


@keras.saving.register_keras_serializable("kerasmem")
class IntegerConv1D(_IntegerFullConvolution):
    """A `keras.layers.Conv1D` of codes."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerConv2D(_IntegerFullConvolution):
    """A `keras.layers.Conv2D` of codes."""


class _IntegerDepthwiseConvolution(_IntegerConvolution):
    """A convolution of every channel by itself."""

    def products(self, pictures: Any) -> Any:
        """Return the sums of products, int32."""
        ops = keras.ops
        kernel = ops.cast(self.kernel, "float32")
        sums = ops.depthwise_conv(pictures, kernel, **self._settings())
        return ops.cast(ops.round(sums), "int32")


@keras.saving.register_keras_serializable("kerasmem")
class IntegerDepthwiseConv1D(_IntegerDepthwiseConvolution):
    """A `keras.layers.DepthwiseConv1D` of codes."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerDepthwiseConv2D(_IntegerDepthwiseConvolution):
    """A `keras.layers.DepthwiseConv2D` of codes."""


@keras.saving.register_keras_serializable("kerasmem")
class IntegerDense(IntegerProduct):
    """A `keras.layers.Dense` of codes, over the last axis."""

    rounds_twice = False

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        rows = keras.ops.cast(inputs, "float32")
        return self.rescaled(exact_sums(keras.ops.matmul, rows, self.kernel, axis=0))


@keras.saving.register_keras_serializable("kerasmem")
class IntegerAffine(IntegerProduct):
    """Multiplies by a number per channel and adds one, as a convolution of size 1."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        factors = ops.reshape(ops.cast(self.kernel, "int32"), (self.channels,))
        return self.rescaled(ops.cast(inputs, "int32") * factors)


def padded(
    pictures: Any, size: Sequence[int], strides: Sequence[int], value: float
) -> Any:
    """Return pictures with what `padding="same"` adds to them.

    Args:
        pictures: a tensor, channels last, of known height and width; or sequences, of
            known length.
        size: lengths of the window, what dilation adds included.
        strides: of the window.
        value: what to add.
    """
    pads = [
        same_padding(length, window, stride)
        for length, window, stride in zip(
            pictures.shape[1:-1], size, strides, strict=True
        )
    ]
    if not any(map(sum, pads)):
        return pictures
    return keras.ops.pad(pictures, [(0, 0), *pads, (0, 0)], constant_values=value)


def same_padding(length: int, window: int, stride: int) -> tuple[int, int]:
    """Return what goes before and after an axis for one output per stride.

    Example:
        >>> same_padding(5, 3, 2), same_padding(4, 3, 2), same_padding(4, 2, 2)
        ((1, 1), (0, 1), (0, 0))
    """
    total = max((-(-length // stride) - 1) * stride + window - length, 0)
    return total // 2, total - total // 2
