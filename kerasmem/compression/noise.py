"""How much of a weight is lost when its values are rounded."""

import numpy as np


def sqnr_db(values: np.ndarray, rounded: np.ndarray) -> float | None:
    """Return the signal-to-quantization-noise ratio in dB, None without any noise.

    Example:
        >>> sqnr_db(np.array([10.0, 0.0]), np.array([9.0, 0.0]))
        20.0
    """
    exact = values.astype(np.float64)
    noise = float(np.square(exact - rounded).sum())
    return decibels(float(np.square(exact).sum()), noise)


def decibels(signal: float, noise: float) -> float | None:
    """Return the ratio of two sums of squares in dB, None if one of them is zero."""
    return 10 * float(np.log10(signal / noise)) if noise and signal else None
