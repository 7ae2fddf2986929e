"""Balance of kernels: one positive factor a channel makes its ranges alike.

NumPy alone. Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization
through weight equalization and bias correction", 2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SWEEPS, _STILL = 200, 1e-5
LARGEST = 2.0**20
"""A channel is scaled by at most this, and at least its inverse."""


@dataclass(frozen=True, eq=False)
class Side:
    """The channels of a pair along one kernel.

    Args:
        kernel: names the kernel.
        places: the channel at each place of its last two axes, broadcast.
    """

    kernel: int
    places: np.ndarray


@dataclass(frozen=True, eq=False)
class ScalePair:
    """One kernel that makes channels, and those that take them.

    Args:
        maker: the kernel that makes them.
        takers: the kernels that take them.
        count: number of channels.
    """

    maker: Side
    takers: tuple[Side, ...]
    count: int


def balance(
    links: Sequence[ScalePair], peaks: dict[int, np.ndarray]
) -> list[np.ndarray]:
    """Return for each link what to multiply the takers of each channel with.

    The maker is divided by it. Then the largest entry of a channel is as large in the
    kernel that makes it as in those that take it, and along a chain of links in all of
    them. A channel of zeros, on either side, is left alone.

    Args:
        links: pairs; a kernel is the maker of one at most, and a taker of one at most.
        peaks: the largest absolute values of every kernel by its last two axes,
            float64; they become those of the scaled kernels.

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
    """Return the largest of `values` for each of `count` channels, 0 for none.

    Args:
        places: the channel of each value, broadcast.
        values: at least 0.
        count: number of channels.
    """
    largest = np.zeros(count)
    np.maximum.at(
        largest, np.broadcast_to(places, values.shape).ravel(), values.ravel()
    )
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
