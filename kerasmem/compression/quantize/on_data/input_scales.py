"""Activation-aware scales (AWQ): smaller steps for weights of large inputs.

Before rounding, the weights of an input are multiplied by a power of its magnitude.
Reading divides by the same factor, so important weights lose little. The power
minimizes the output error of the layer.

Source: Lin, Tang, Tang, Yang, Chen, Wang, Xiao, Dang, Gan and Han, "AWQ:
Activation-aware Weight Quantization for LLM Compression and Acceleration", 2023.
"""

import numpy as np

from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.on_data.moments import Moments, matrices, of_matrices
from kerasmem.types import Layer

_POWERS = np.arange(11) / 10
_LEAST = 1e-4
"""Minimum input magnitude relative to the largest one."""


def input_scales(
    layer: Layer, kernel: np.ndarray, coding: Coding, moments: Moments
) -> np.ndarray | None:
    """Return the input scales of a kernel, positive float32.

    Shape of the kernel, with 1 for axes that an output channel does not sum over. None
    if equal scales have the smallest error.
    """
    moments = moments.settled
    weights = matrices(layer, kernel).astype(np.float32)
    input_moments = moments.rounded.astype(np.float32)
    # Difference between the outputs for inputs of the float and the rounded model.
    missing = (moments.mixed - moments.rounded).astype(np.float32) @ weights

    def error(scales: np.ndarray) -> float:
        coded_kernel = coding.encode(kernel, input_scales=scales)
        noise = matrices(layer, coding.decoded(coded_kernel, kernel.shape)) - weights
        errors = noise * (input_moments @ noise - 2 * missing)
        return float(errors.sum(dtype=np.float64))

    sizes = _sizes(layer, weights.shape, coding, moments)
    power = min(_POWERS, key=lambda each: error(_scales(sizes, each)))
    return _scales(sizes, power) if power else None


def _sizes(
    layer: Layer, shape: tuple[int, ...], coding: Coding, moments: Moments
) -> np.ndarray:
    squares = np.einsum("gkk->gk", moments.rounded)[..., None]
    every = of_matrices(layer, np.broadcast_to(squares, shape))
    others = tuple(axis for axis in range(every.ndim) if axis not in coding.axes)
    sizes = np.sqrt(every.mean(others, keepdims=True))
    return np.maximum(sizes / max(sizes.max(), np.finfo(np.float64).tiny), _LEAST)


def _scales(sizes: np.ndarray, power: float) -> np.ndarray:
    scales = sizes**-power
    return (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)
