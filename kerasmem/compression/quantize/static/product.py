"""What layers with a kernel share: its codes, its bias, its multipliers.

Products of integers are summed with floats that can hold them. A sum times a real
number is rounded as LiteRT's kernels do: the number is written as
`mantissa * 2 ** (exponent - 31)` with an int32 mantissa. The product of two int32
numbers takes 64 bits, which JAX does not have by default: it is put together of halves
here, exactly, so that all backends and XLA give the same.

Source: Jacob and others, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.math import LIMIT, finite, quantize
from kerasmem.compression.quantize.static.base import IntegerLayer
from kerasmem.graph.values import represents

MOST_PRODUCTS = (1 << 24) // (128 * LIMIT)
"""So many products of codes float32 sums up exactly, in any order."""

_LARGEST_BIAS = 1 << 28
_RELU = {"relu": keras.ops.relu, "relu6": keras.ops.relu6}


class IntegerProduct(IntegerLayer):
    """A layer that multiplies by a kernel of int8 codes and adds an int32 bias.

    It gives codes, or, where only floats go on with them, the sums as floats.

    Args:
        kernel_shape: shape of the kernel; its last axes, or the last one, are the
            channels that have a scale of their own.
        channels: number of them.
    """

    arguments = (
        "kernel_shape",
        "channels",
    )

    rounds_twice = True

    def __init__(
        self, *, kernel_shape: Any = (), channels: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_shape = tuple(kernel_shape)
        self.channels = channels

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

    def rescaled(self, products: Any) -> Any:
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
        return self.finished(steps)

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


def exact_sums(
    product: Callable[[Any, Any], Any], x: Any, kernel: Any, *, axis: int, each: int = 1
) -> Any:
    """Return the product of codes and a kernel as int32, exactly.

    It is computed in parts that float32 holds exactly, for which all backends have
    fast kernels.

    Args:
        product: takes float32 tensors, a part of `x` and one of the kernel.
        x: float32, with whole numbers in [-128, 127]; its last axis is summed over.
        kernel: int8, in [-127, 127].
        axis: the axis of the kernel that goes with the last one of `x`.
        each: number of products for every entry along it.
    """
    ops = keras.ops
    length, size = kernel.shape[axis], max(MOST_PRODUCTS // each, 1)
    weights = ops.cast(kernel, "float32")
    before = (slice(None),) * axis
    total = None
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        whole = size >= length
        left = x if whole else x[..., part]
        right = weights if whole else weights[(*before, part)]
        sums = ops.cast(ops.round(product(left, right)), "int32")
        total = sums if total is None else total + sums
    return total


_MOST = 1 << 30
"""Integers beyond this are clipped: times any multiplier in use they saturate."""


def fixed_point(numbers: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return int32 mantissas and exponents of positive numbers.

    Numbers below 2 ** -31 become zero.

    Args:
        numbers: float64, at most 2 ** 15.

    Example:
        >>> mantissa, exponent = fixed_point(np.array([0.75, 1e-12]))
        >>> (mantissa / 2**31 * 2.0**exponent).tolist()
        [0.75, 0.0]
    """
    mantissa, exponent = np.frexp(np.asarray(numbers, np.float64))
    mantissa = np.floor(mantissa * (1 << 31) + 0.5).astype(np.int64)
    carry = mantissa == 1 << 31
    mantissa, exponent = np.where(carry, mantissa // 2, mantissa), exponent + carry
    none = exponent < -30
    mantissa, exponent = np.where(none, 0, mantissa), np.where(none, 0, exponent)
    return mantissa.astype(np.int32), exponent.astype(np.int32)


def times(integers: Any, mantissa: Any, exponent: Any, *, twice: bool = True) -> Any:
    """Return `integers * mantissa * 2 ** (exponent - 31)`, rounded to int32.

    Args:
        integers: an int32 tensor, within 2 ** 30 after a shift by a positive exponent.
        mantissa: int32, from 0, an array or tensor that broadcasts against it.
        exponent: int32, in [-30, 15], of the shape of `mantissa`.
        twice: round the product to 31 bits and the result again, halves away from
            zero, as LiteRT's kernels do; False rounds once, halves up.
    """
    ops = keras.ops
    mantissa, exponent = _int32(mantissa), _int32(exponent)
    left, right = ops.maximum(exponent, 0), ops.maximum(-exponent, 0)
    most = ops.right_shift(_int32(_MOST), left)
    shifted = ops.left_shift(ops.clip(integers, -most, most), left)
    if twice:
        return _divided(_high(shifted, mantissa, _int32(1 << 15)), right)
    # The halves that the shift below rounds away from are of no lower bits.
    nudge = ops.where(right == 0, _int32(1 << 15), _int32(0))
    high = _high(shifted, mantissa, nudge)
    half = ops.right_shift(ops.left_shift(_int32(1), right), _int32(1))
    return ops.right_shift(high + half, right)


def _high(a: Any, b: Any, nudge: Any) -> Any:
    """Return `(a * b + nudge * 2 ** 15) // 2 ** 31` for |a| <= 2 ** 30, b >= 0."""
    low_a, low_b = _bits(a, 15), _bits(b, 16)
    high_a, high_b = _shift(a, 15), _shift(b, 16)
    one, two, low = high_a * low_b, low_a * high_b, low_a * low_b
    carry = _bits(one, 16) + 2 * _bits(two, 15) + _shift(low, 15) + nudge
    return high_a * high_b + _shift(one, 16) + _shift(two, 15) + _shift(carry, 16)


def _divided(x: Any, bits: Any) -> Any:
    """Return `x / 2 ** bits`, rounded, halves away from zero."""
    ops = keras.ops
    mask = ops.left_shift(_int32(1), bits) - 1
    threshold = ops.right_shift(mask, _int32(1)) + ops.cast(x < 0, "int32")
    over = ops.cast(ops.bitwise_and(x, mask) > threshold, "int32")
    return ops.right_shift(x, bits) + over


def _shift(x: Any, bits: int) -> Any:
    return keras.ops.right_shift(x, _int32(bits))


def _bits(x: Any, count: int) -> Any:
    return keras.ops.bitwise_and(x, _int32((1 << count) - 1))


def _int32(x: Any) -> Any:
    return keras.ops.cast(keras.ops.convert_to_tensor(x), "int32")
