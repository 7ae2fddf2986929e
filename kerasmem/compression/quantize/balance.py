"""Channel balancing of kernels: one positive factor per channel equalizes ranges.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SWEEPS, _STILL = 200, 1e-5
LARGEST = 2.0**20
"""Maximum scaling factor of a channel, and the inverse of the minimum."""


@dataclass(frozen=True, eq=False)
class Side:
    """Channels of a pair along one kernel. `places` contains their indices."""

    kernel: int
    places: np.ndarray


@dataclass(frozen=True, eq=False)
class ScalePair:
    """A kernel with output channels, and the kernels that read these channels."""

    maker: Side
    takers: tuple[Side, ...]
    count: int


def balance(
    links: Sequence[ScalePair], peaks: dict[int, np.ndarray]
) -> list[np.ndarray]:
    """Return the factors of the takers' channels for each link.

    The maker is divided by the same factors. All kernels along a chain of links then
    have the same largest entry per channel. A channel keeps factor 1 if it is zero in
    the maker or in all takers.

    Args:
        links: Pairs of kernels. A kernel is the maker of at most one pair, and a taker
            in at most one.
        peaks: Largest absolute values of every kernel over its last two axes, float64.
            Updated to the scaled kernels.

    Example:
        >>> side = [Side(0, np.array([[0, 1]])), Side(1, np.array([[0], [1]]))]
        >>> peaks = {0: np.array([[4.0, 1.0]]), 1: np.array([[1.0], [9.0]])}
        >>> balance([ScalePair(side[0], (side[1],), 2)], peaks)[0].round(3).tolist()
        [2.0, 0.333]
        >>> peaks[0].tolist(), peaks[1].tolist()
        ([[2.0, 3.0]], [[2.0], [3.0]])
    """
    totals = [np.ones(link.count) for link in links]
    for _ in range(_SWEEPS):
        largest_change = 0.0
        for number, link in enumerate(links):
            step = _step(link, peaks)
            new_total = np.clip(totals[number] * step, 1 / LARGEST, LARGEST)
            step = new_total / totals[number]
            totals[number] = new_total
            peaks[link.maker.kernel] = (
                peaks[link.maker.kernel] / step[link.maker.places]
            )
            for taker in link.takers:
                peaks[taker.kernel] = peaks[taker.kernel] * step[taker.places]
            largest_change = max(
                largest_change, float(np.abs(np.log(step)).max(initial=0.0))
            )
        if largest_change < _STILL:
            break
    return totals


def largest_by(places: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the largest of nonnegative `values` for each of `count` channels."""
    axes = tuple(axis for axis, length in enumerate(places.shape) if length == 1)
    largest = np.zeros(count)
    by_place = values.max(axes, keepdims=True, initial=0.0)  # fast for matrices
    np.maximum.at(largest, *map(np.ravel, np.broadcast_arrays(places, by_place)))
    return largest


def _step(link: ScalePair, peaks: dict[int, np.ndarray]) -> np.ndarray:
    maker_peaks = largest_by(link.maker.places, peaks[link.maker.kernel], link.count)
    taker_peaks = np.zeros(link.count)
    for taker in link.takers:
        here = largest_by(taker.places, peaks[taker.kernel], link.count)
        taker_peaks = np.maximum(taker_peaks, here)
    both = (maker_peaks > 0) & (taker_peaks > 0)
    return np.sqrt(np.where(both, maker_peaks, 1.0)) / np.sqrt(
        np.where(both, taker_peaks, 1.0)
    )
