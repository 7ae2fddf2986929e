"""Convolutions of codes."""

import math
from typing import Any

import keras

from kerasmem.compression.quantize.static.exact import exact_sums
from kerasmem.compression.quantize.static.product import IntegerProduct
from kerasmem.compression.quantize.static.windows import padded


class _IntegerConvolution(IntegerProduct):
    """A convolution over pictures or sequences with channels last.

    Args:
        strides: of height and width, or of the length.
        padding: `"valid"`, `"same"`, or for sequences `"causal"`.
        dilation: of height and width, or of the length.
    """

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

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            **super().get_config(),
            "strides": self.strides,
            "padding": self.padding,
            "dilation": self.dilation,
        }

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
