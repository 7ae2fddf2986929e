"""Layers that round a tensor within their own call."""

from typing import Any

import keras


class FakeQuantizedInside(keras.layers.Layer):
    """A layer with a `FakeQuantize`, `inner_quantizer`, for a tensor within it."""

    inner_quantizer: Any


class _Dense(FakeQuantizedInside):
    """A Dense that rounds what goes into the activation within it."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Return the activation of the rounded product."""
        y = keras.ops.matmul(inputs, self.kernel)
        y = y if self.bias is None else keras.ops.add(y, self.bias)
        return self.activation(self.inner_quantizer(y, training=training))


class _Separable(FakeQuantizedInside):
    """A separable convolution that rounds what its first kernel gives the second."""

    def call(self, inputs: Any) -> Any:
        """Return both convolutions, the bias and the activation."""
        ops, form = keras.ops, self.data_format
        within = ops.depthwise_conv(
            inputs,
            self.depthwise_kernel,
            self.strides,
            self.padding,
            form,
            self.dilation_rate,
        )
        within = self.inner_quantizer(within)
        y = ops.conv(within, self.pointwise_kernel, 1, "valid", form)
        if self.bias is not None:
            ones = (1,) * self.rank
            last = (1, *ones, self.filters)
            shape = last if form == "channels_last" else (1, self.filters, *ones)
            y = ops.add(y, ops.reshape(self.bias, shape))
        return y if self.activation is None else self.activation(y)


def inside_form(layer: Any) -> type:
    """Return what a Dense or separable convolution becomes that rounds within."""
    return _Dense if isinstance(layer, keras.layers.Dense) else _Separable
