"""The next entries to be removed, ranked once for several prunings."""

from collections.abc import Sequence

import numpy as np

_SAMPLED = 64  # one of so many entries is looked at to guess a threshold
_MARGIN, _SLACK = 1.3, 16


class Ranked:
    """Entries of several arrays in the order in which they are to be removed.

    Args:
        matters: how much each entry matters, an array per weight; ranked together.
        kept: which entries are there to be removed, bool arrays of the same shapes.
        count: number of entries to rank, at most those that are kept.
    """

    def __init__(
        self, matters: Sequence[np.ndarray], kept: Sequence[np.ndarray], count: int
    ) -> None:
        scores = np.concatenate([each.ravel() for each in matters])
        there = np.concatenate([each.ravel() for each in kept])
        self._order = smallest(scores, there, count)
        self._starts = np.cumsum([0, *(each.size for each in matters)])

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._order)

    def take(self, count: int, kept: Sequence[np.ndarray]) -> None:
        """Set the next `count` entries of `kept` to False."""
        taken, self._order = self._order[:count], self._order[count:]
        for mask, start in zip(kept, self._starts, strict=False):
            inside = taken[(taken >= start) & (taken < start + mask.size)]
            mask.reshape(-1)[inside - start] = False


def smallest(scores: np.ndarray, there: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` smallest scores, the smallest first.

    Only those below a guess are sorted, which a sample gives; if they are too few, all
    are.

    Args:
        scores: numbers, 1-D.
        there: bool; only entries where it is True count.
        count: number of indices, at most those that are there.

    Example:
        >>> smallest(np.array([3, 1, 2, 0]), np.array([True, True, True, False]), 2)
        array([1, 2])
    """
    sample = scores[::_SAMPLED][there[::_SAMPLED]]
    place = int(_MARGIN * count / _SAMPLED) + _SLACK
    candidates = np.empty(0, int)
    if place < sample.size:
        guess = np.partition(sample, place)[place]
        candidates = np.flatnonzero((scores <= guess) & there)
    if len(candidates) < count:
        candidates = np.flatnonzero(there)
    order = np.argsort(scores[candidates])
    return candidates[order[:count]]
