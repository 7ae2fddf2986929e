"""Activation-aware scales: weights of large inputs get finer steps.

Before rounding, the weights of an input are multiplied by a power of how large the
input is, and divided by it when they are read: so little is lost of those that matter
most. The power is the one that leaves the least error in what the layer makes.

Source: Lin, Tang, Tang, Yang, Chen, Wang, Xiao, Dang, Gan and Han, "AWQ:
Activation-aware Weight Quantization for LLM Compression and Acceleration", 2023.
"""

import numpy as np

from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.on_data.moments import Moments, matrices, of_matrices
from kerasmem.types import Layer

_POWERS = np.arange(11) / 10
_LEAST = 1e-4
"""So small an input counts at least, of the largest one."""


def input_scales(
    layer: Layer, kernel: np.ndarray, coding: Coding, moments: Moments
) -> np.ndarray | None:
    """Return what weights are multiplied with once their codes are read.

    No other power of the inputs' size leaves less error; None if 0, for all alike, is
    the best.

    Args:
        layer: a layer of `is_product_of_matrices`.
        kernel: its float weights.
        coding: how they are stored, with scales of inputs.
        moments: of what the layer is given.

    Returns:
        float32, positive, of the rank of the kernel and 1 long along all axes that an
        output channel does not sum over.
    """
    moments = moments.settled
    weights = matrices(layer, kernel).astype(np.float32)
    input_moments = moments.rounded.astype(np.float32)
    # What the float model makes of its own inputs and the weights not of these.
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
