"""A histogram of values that come in parts, in memory that does not grow."""

import numpy as np

BINS = 2048


class Histogram:
    """Counts of values in bins of one width over a range that grows with them.

    The first part sets the range. Where a later one goes beyond it, the range doubles
    to that side, bins joining in pairs, until it is inside. So no count is ever lost
    or split, and a value is at most one bin from where it is counted.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.low = self.high = 0.0
        self.least, self.most = np.inf, -np.inf

    @property
    def width(self) -> float:
        """The width of a bin."""
        return (self.high - self.low) / BINS

    @property
    def centers(self) -> np.ndarray:
        """The middle of each bin."""
        return self.low + (np.arange(BINS) + 0.5) * self.width

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def add(self, values: np.ndarray) -> None:
        """Count finite values, at least one.

        Args:
            values: of any shape and float or integer dtype.
        """
        values = np.asarray(values, np.float64).ravel()
        least, most = float(values.min()), float(values.max())
        self.least, self.most = min(self.least, least), max(self.most, most)
        if not self.total:
            # A constant has no width of its own: give it one that floats can tell.
            room = 0.0 if most > least else max(abs(most), 1e-30) * 1e-6
            self.low, self.high = least - room, most + room
        while least < self.low:
            self._double(downwards=True)
        while most > self.high:
            self._double(downwards=False)
        places = ((values - self.low) / self.width).astype(np.int64)
        self.counts += np.bincount(np.clip(places, 0, BINS - 1), minlength=BINS)

    def quantile(self, share: float) -> float:
        """Return the value that `share` of them do not exceed, to a bin's width."""
        below = np.cumsum(self.counts)
        target = min(max(share * self.total, 1e-9), self.total)
        place = int(np.searchsorted(below, target))
        before = below[place] - self.counts[place]
        inside = (target - before) / self.counts[place]
        found = self.low + (place + float(inside)) * self.width
        return min(max(found, self.least), self.most)

    def _double(self, *, downwards: bool) -> None:
        joined = self.counts.reshape(-1, 2).sum(axis=1)
        empty = np.zeros_like(joined)
        size = self.high - self.low
        if downwards:
            self.counts, self.low = np.concatenate([empty, joined]), self.low - size
        else:
            self.counts, self.high = np.concatenate([joined, empty]), self.high + size
