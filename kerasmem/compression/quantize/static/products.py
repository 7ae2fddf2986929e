"""Layers with a kernel of codes: Dense, convolutions, normalization.

Products of integers are summed with floats that can hold them. Windows over pictures
are where TensorFlow and LiteRT put them.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.math import LIMIT, finite, quantize
from kerasmem.compression.quantize.static.base import (
    IntegerLayer,
    exact_sums,
    fixed_point,
    times,
)
from kerasmem.graph.values import represents, to_numpy

_LARGEST_BIAS = 1 << 28
_RELU = {"relu": keras.ops.relu, "relu6": keras.ops.relu6}


class IntegerProduct(IntegerLayer):
    """A layer that multiplies by a kernel of int8 codes and adds an int32 bias.

    It gives codes, or, where only floats go on with them, the sums as floats.

    Args:
        kernel_shape: shape of the kernel; its last `channel_axes` are the channels that
            have a scale of their own.
    """

    kernel_shape: tuple[int, ...]

    channel_axes = 1
    rounds_twice = True

    @property
    def channels(self) -> int:
        """The number of channels."""
        return math.prod(self.kernel_shape[-self.channel_axes :])

    def build(self, input_shape: Any) -> None:
        """Make the variables; `store` fills them."""
        del input_shape
        every = (self.channels,)
        self.kernel = self._weight("kernel", "int8", self.kernel_shape)
        self.bias = self._weight("bias", "int32", every)
        self.kernel_scale = self._weight("kernel_scale", "float32", every)
        factors = [self.kernel_scale]
        if self.output_codes is not None:
            self.mantissa = self._weight("mantissa", "int32", every)
            self.exponent = self._weight("exponent", "int8", every)
            factors += [self.mantissa, self.exponent]
        for factor in factors:
            represents(factor, None)

    def store(
        self, kernel: np.ndarray, bias: np.ndarray | None, granularity: str = "channel"
    ) -> None:
        """Take over the weights of a float layer.

        Args:
            kernel: float, of `kernel_shape`.
            bias: float, one per channel, or None.
            granularity: `"channel"`, or `"tensor"` for one scale.

        Raises:
            ModelError: if one of them holds NaN or infinity.
        """
        finite(kernel, self.name)
        added = np.zeros(self.channels) if bias is None else finite(bias, self.name)
        step = self.input_codes[0].scale
        matrix = kernel.reshape(-1, self.channels)
        steps = added.astype(np.float64) / step
        codes, scales = coded_kernel(matrix, steps, granularity)
        self.kernel.assign(codes.reshape(self.kernel_shape))
        self.bias.assign(np.rint(steps / scales).astype(np.int32))
        self.kernel_scale.assign(scales)
        if self.output_codes is not None:
            factors = step * scales.astype(np.float64) / self.output_codes.scale
            mantissa, exponent = fixed_point(factors)
            self.mantissa.assign(mantissa)
            self.exponent.assign(exponent.astype(np.int8))

    def float_kernel(self) -> np.ndarray:
        """Return what the codes of the kernel stand for, a column per channel."""
        matrix = to_numpy(self.kernel).reshape(-1, self.channels)
        return matrix * to_numpy(self.kernel_scale)

    def requantized(self, products: Any) -> Any:
        """Return int8 codes or float32 numbers, of int32 sums of products of codes."""
        ops = keras.ops
        matrix = ops.reshape(ops.cast(self.kernel, "int32"), (-1, self.channels))
        zero = self.input_codes[0].zero_point
        sums = products + (self.bias - zero * ops.sum(matrix, axis=0))
        if self.output_codes is None:
            step = self.kernel_scale * self.input_codes[0].scale
            floats = ops.cast(sums, "float32") * step
            return floats if self.activation is None else _RELU[self.activation](floats)
        steps = times(sums, self.mantissa, self.exponent, twice=self.rounds_twice)
        return self.as_output_codes(steps)

    def _weight(self, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        return self.add_weight(
            name=name, shape=shape, dtype=dtype, initializer="zeros", trainable=False
        )


def coded_kernel(
    matrix: np.ndarray, bias: np.ndarray, granularity: str = "channel"
) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes of a kernel and a float32 scale per channel.

    A channel whose bias would need more than 28 bits in steps of the scale gets a
    larger scale.

    Args:
        matrix: the kernel, float, a column per channel.
        bias: one per channel, divided by the scale of the input.
        granularity: `"channel"`, or `"tensor"` for one scale.

    Raises:
        ModelError: if the kernel holds NaN or infinity.

    Example:
        >>> codes, scales = coded_kernel(np.array([[254.0, 0.0]]), np.zeros(2))
        >>> codes.tolist(), scales.tolist()
        ([[127, 0]], [2.0, 1.0])
    """
    _, scales = quantize(matrix, (0,) if granularity == "channel" else (0, 1))
    scales = np.broadcast_to(scales.reshape(-1), bias.shape)
    # A channel of zeros may have any scale: the one that suits its bias best.
    own = np.where(matrix.any(axis=0) | (bias == 0), scales, 0.0)
    wide = np.maximum(own, np.abs(bias) / _LARGEST_BIAS).astype(np.float32)
    wide = np.maximum(wide, np.finfo(np.float32).tiny)
    codes = np.clip(np.rint(matrix.astype(np.float64) / wide), -LIMIT, LIMIT)
    return codes.astype(np.int8), wide


class _IntegerConvolution(IntegerProduct):
    """A convolution over pictures or sequences with channels last.

    Args:
        strides: of height and width, or of the length.
        padding: `"valid"`, `"same"`, or for sequences `"causal"`.
        dilation_rate: of height and width, or of the length.
    """

    strides: tuple[int, ...]
    padding: str
    dilation_rate: tuple[int, ...]

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        pictures = ops.cast(inputs, "float32")
        zero = float(self.input_codes[0].zero_point)
        if self.padding == "same":
            size = [
                1 + rate * (length - 1)
                for rate, length in zip(
                    self.dilation_rate, self.kernel_shape, strict=False
                )
            ]
            pictures = padded(pictures, size, self.strides, zero)
        elif self.padding == "causal":
            pads = [(0, 0), (self.before, 0), (0, 0)]
            pictures = ops.pad(pictures, pads, constant_values=zero)
        return self.requantized(self.products(pictures))

    @property
    def before(self) -> int:
        """How many steps causal padding puts before a sequence."""
        return self.dilation_rate[0] * (self.kernel_shape[0] - 1)

    def convolved(
        self, convolve: Callable[..., Any], pictures: Any, kernel: Any
    ) -> Any:
        """Return what one of Keras's convolutions makes of padded pictures."""
        last = "channels_last"
        return convolve(
            pictures, kernel, self.strides, "valid", last, self.dilation_rate
        )


class _IntegerFullConvolution(_IntegerConvolution):
    """A convolution in which every channel goes into every other."""

    def products(self, pictures: Any) -> Any:
        """Return the sums of products, int32."""
        window = self.kernel_shape[:-2]
        return exact_sums(
            partial(self.convolved, keras.ops.conv),
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

    channel_axes = 2

    def products(self, pictures: Any) -> Any:
        """Return the sums of products, int32."""
        ops = keras.ops
        kernel = ops.cast(self.kernel, "float32")
        sums = self.convolved(ops.depthwise_conv, pictures, kernel)
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
        return self.requantized(exact_sums(keras.ops.matmul, rows, self.kernel, axis=0))


@keras.saving.register_keras_serializable("kerasmem")
class IntegerAffine(IntegerProduct):
    """Multiplies by a number per channel and adds one, as a convolution of size 1."""

    def call(self, inputs: Any) -> Any:
        """Return int8 codes of int8 codes."""
        ops = keras.ops
        factors = ops.reshape(ops.cast(self.kernel, "int32"), (self.channels,))
        return self.requantized(ops.cast(inputs, "int32") * factors)


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
