"""Convolutions of codes."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.exact import exact_sums
from kerasmem.compression.quantize.static.product import IntegerProduct
from kerasmem.compression.quantize.static.windows import padded


class _IntegerConvolution(IntegerProduct):
    """A convolution over pictures with channels last.

    Args:
        strides: of height and width.
        padding: `"valid"` or `"same"`.
        dilation: of height and width.
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
        if self.padding == "same":
            size = [
                1 + rate * (length - 1)
                for rate, length in zip(self.dilation, self.kernel_shape, strict=False)
            ]
            zero = self.input_codes[0].zero_point
            pictures = padded(pictures, size, self.strides, float(zero))
        return self.rescaled(self.products(pictures))

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


@keras.saving.register_keras_serializable("kerasmem")
class IntegerConv2D(_IntegerConvolution):
    """A `keras.layers.Conv2D` of codes."""

    def products(self, pictures: Any) -> Any:
        """Return the sums of products, int32."""
        height, width = self.kernel_shape[:2]
        return exact_sums(
            lambda x, kernel: keras.ops.conv(x, kernel, **self._settings()),
            pictures,
            self.kernel,
            axis=2,
            each=height * width,
        )


@keras.saving.register_keras_serializable("kerasmem")
class IntegerDepthwiseConv2D(_IntegerConvolution):
    """A `keras.layers.DepthwiseConv2D` of codes."""

    def products(self, pictures: Any) -> Any:
        """Return the sums of products, int32."""
        ops = keras.ops
        kernel = ops.cast(self.kernel, "float32")
        sums = ops.depthwise_conv(pictures, kernel, **self._settings())
        return ops.cast(ops.round(sums), "int32")
