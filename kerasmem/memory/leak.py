"""Telling a sustained rise from noise, from warming up and from a sawtooth."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WARM_UP = 2
"""Values at the beginning that are never looked at."""

WINDOWS = (8, 16, 32)
"""Numbers of values in which a rise is looked for."""

_RISE_PER_SCATTER = 8.0
_HELD_UP = 0.7
_LEAST_NET_RISE = 1 - 1 / _RISE_PER_SCATTER
"""Share of slope times epochs by which a steady rise ends above its begin."""


class Rise(NamedTuple):
    """A sustained rise: by how much per value, and the index of its first value."""

    slope: float
    since: int


def sustained_rise(
    values: Sequence[float], least: float, windows: Sequence[int] = WINDOWS
) -> Rise | None:
    """Return the rise that the latest values show, or None.

    The slope is the median of the slopes between any two values (Theil, "A
    rank-invariant method of linear and polynomial regression analysis", 1950; Sen,
    1968), which a few odd values do not move. A rise is sustained if it is at least
    `least` per value and eight times as high as the values scatter about it, if its
    second half is about as steep as the whole, and if it ends higher than anything
    before; so neither noise nor a step, a rise that wears off or a sawtooth whose
    teeth are shorter than the smallest window is one.

    Args:
        values: one value per epoch, the latest last.
        least: smallest slope of interest.
        windows: numbers of latest values to look at; the widest that shows a rise
            says since when.

    Example:
        >>> sustained_rise([0, 9, 9, 9, 9, 9, 9, 9, 9, 9], least=1)
        >>> sustained_rise([0, 9, 10, 11, 12, 13, 14, 15, 16, 17], least=1)
        Rise(slope=1.0, since=2)
    """
    for window in sorted(windows, reverse=True):
        first = len(values) - window
        if first < WARM_UP or values[-1] <= max(values[:-1]):
            continue
        if values[-1] - values[first] < _LEAST_NET_RISE * least * (window - 1):
            continue  # it cannot be, and that was cheap to see
        slope = _slope(values[first:])
        if slope >= least and _is_steady(values[first:], slope):
            return Rise(slope, first)
    return None


def _is_steady(values: Sequence[float], slope: float) -> bool:
    about = np.asarray(values, "float64") - slope * np.arange(len(values))
    scatter = float(np.ptp(about))
    is_clear = slope * (len(values) - 1) >= _RISE_PER_SCATTER * scatter
    return is_clear and _slope(values[len(values) // 2 :]) >= _HELD_UP * slope


@functools.cache
def _pairs(number: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(number, k=1)


def _slope(values: Sequence[float]) -> float:
    heights = np.asarray(values, "float64")
    first, second = _pairs(len(heights))
    return float(np.median((heights[second] - heights[first]) / (second - first)))
