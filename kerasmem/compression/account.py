"""What a technique did to a weight, told in one form."""

import numpy as np

from kerasmem.graph.layers import Weight
from kerasmem.records import WeightChange

_PIECE = 1 << 18
"""Entries that are float64 at a time."""


def account(
    weight: Weight,
    technique: str,
    detail: str,
    *,
    changed: bool,
    after_bytes: int | None = None,
    sqnr_db: float | None = None,
) -> WeightChange:
    """Return what was done to a weight, or why nothing was.

    Args:
        weight: the weight as it was.
        technique: name of the technique.
        detail: what was done, or why nothing was.
        changed: whether anything was.
        after_bytes: bytes in RAM now; None for as many as before.
        sqnr_db: what is left of it beside the noise of rounding, in dB, or None.
    """
    return WeightChange(
        layer=weight.block.name,
        weight=weight.path,
        technique=technique,
        changed=changed,
        detail=detail,
        before_bytes=weight.nbytes,
        after_bytes=weight.nbytes if after_bytes is None else after_bytes,
        sqnr_db=sqnr_db,
    )


def sqnr_db(values: np.ndarray, rounded: np.ndarray) -> float | None:
    """Return the signal-to-quantization-noise ratio in dB, None without any noise.

    Example:
        >>> sqnr_db(np.array([10.0, 0.0]), np.array([9.0, 0.0]))
        20.0
    """
    signal = noise = 0.0
    flat, other = values.reshape(-1), rounded.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        exact = flat[start : start + _PIECE].astype(np.float64)
        lost = exact - other[start : start + _PIECE]
        signal, noise = signal + float(exact @ exact), noise + float(lost @ lost)
    return decibels(signal, noise)


def decibels(signal: float, noise: float) -> float | None:
    """Return the ratio of two sums of squares in dB, None if one of them is zero."""
    return 10 * float(np.log10(signal / noise)) if noise and signal else None
