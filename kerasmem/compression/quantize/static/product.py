"""What layers with a kernel share: its codes, its bias, its multipliers."""

from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.math import LIMIT, finite, quantize
from kerasmem.compression.quantize.static.base import IntegerLayer
from kerasmem.compression.quantize.static.multiplier import fixed_point, times
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

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        own = {"kernel_shape": self.kernel_shape, "channels": self.channels}
        return {**super().get_config(), **own}

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
