"""Separable convolutions that round what goes from their first kernel to the second."""

from collections.abc import Callable
from typing import Any

import keras

from kerasmem.backends import shadow


def round_within(
    layer: Any, rounded: Callable[[Any], Any], is_passing: Callable[[], bool]
) -> Callable[[], None]:
    """Have a separable convolution round the tensor within it; return the undo.

    Args:
        layer: a SeparableConv1D or SeparableConv2D.
        rounded: takes the tensor.
        is_passing: whether it is to be done now.
    """

    def call(original: Any, inputs: Any) -> Any:
        if not is_passing():
            return original(inputs)
        ops, form = keras.ops, layer.data_format
        within = ops.depthwise_conv(
            inputs,
            layer.depthwise_kernel,
            layer.strides,
            layer.padding,
            form,
            layer.dilation_rate,
        )
        y = ops.conv(rounded(within), layer.pointwise_kernel, 1, "valid", form)
        if layer.bias is not None:
            ones = (1,) * layer.rank
            last = (1, *ones, layer.filters)
            shape = last if form == "channels_last" else (1, layer.filters, *ones)
            y = ops.add(y, ops.reshape(layer.bias, shape))
        return y if layer.activation is None else layer.activation(y)

    return shadow(layer, "call", call)
