"""Symmetric int8 with one scale per channel, on NumPy arrays.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

import numpy as np

from kerasmem.errors import ModelError

LIMIT = 127
"""Codes lie in [-127, 127]: -128 stays unused, so that negation is exact."""


def quantize(
    values: np.ndarray, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 codes and float32 scales with `codes * scales` near `values`.

    Args:
        values: weights of any float dtype and shape.
        axes: axes that share a scale; the scales keep them with size 1.

    Returns:
        Codes, int8, of the shape of `values`; scales, float32, positive. No entry is
        off by more than half a scale.

    Raises:
        ModelError: if `values` holds NaN or infinity.

    Example:
        >>> codes, scales = quantize(np.array([[1.0, -254.0], [0.5, 127.0]]), (0,))
        >>> scales.tolist()
        [[0.007874015718698502, 2.0]]
        >>> codes.tolist()
        [[127, -127], [64, 64]]
    """
    if not np.isfinite(values).all():
        raise ModelError(
            "Weights with NaN or infinity cannot be quantized. Received: "
            f"{np.count_nonzero(~np.isfinite(values))} such entries of {values.size}."
        )
    exact = values.astype(np.float64)
    largest = np.abs(exact).max(axis=axes, keepdims=True, initial=0.0)
    scales = (largest / LIMIT).astype(np.float32)
    # An all-zero channel has any scale; one too small for float32 takes the smallest.
    scales[largest == 0.0] = 1.0
    scales = np.maximum(scales, np.finfo(np.float32).tiny)
    codes = np.clip(np.rint(exact / scales), -LIMIT, LIMIT).astype(np.int8)
    return codes, scales


def dequantize(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the float32 weights that int8 `codes` and their `scales` stand for."""
    return codes.astype(np.float32) * scales
