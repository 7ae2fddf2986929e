"""Searches for the largest batch size that fits, with an estimate and few trials."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kerasmem.memory.batch_size.trial import BatchSizeTrial

TOLERANCE = 1.06
"""The search ends if this multiple of a batch size that fits is known to fail."""

_CAUTION = 1.2  # The first trial fits even if the true peak is 1.2 times the estimate.
_PROBE = 1.05
_BOLDNESS = 0.7
MOST_FAILURES = 2
MOST_TRIALS = 16
"""Maximum number of trials of a search."""


@dataclass
class BatchSizeSearch:
    """Searches for the largest batch size that fits.

    Args:
        predict: Increasing function from a batch size to its estimated peak in bytes.
        attempt: Tests a batch size.
        limit_bytes: Memory limit in bytes.
        fixed_bytes: Bytes in use for any batch size.
        sizes: Allowed batch sizes, ascending.
        most_failures: Number of failed trials that ends the search if another fits.
    """

    predict: Callable[[int], int]
    attempt: Callable[[int], BatchSizeTrial]
    limit_bytes: int
    fixed_bytes: int
    sizes: Sequence[int]
    most_failures: int = MOST_FAILURES
    trials: list[BatchSizeTrial] = field(default_factory=list)

    def run(self) -> int:
        """Return the largest batch size that fits, 0 if no trial succeeded."""
        while not self._is_done():
            self.trials.append(self.attempt(self._next()))
        return self._fits

    def corrected(self, batch_size: int) -> int:
        """Return the estimated peak, corrected by the trials with the largest batches.

        The peak is linear in the estimate: through two trials, or through one trial and
        the bytes in use for any batch size.
        """
        peaks = {t.batch_size: t.peak_bytes for t in self.trials if t.peak_bytes}
        if not peaks:
            return self.predict(batch_size)
        points = [(self.predict(size), peaks[size]) for size in sorted(peaks)]
        *_, (first, low), (last, high) = (self.fixed_bytes,) * 2, *points
        if len(points) > 1 and not (first < last and low < high):
            first, low = self.fixed_bytes, self.fixed_bytes
        slope = max(high - low, 1) / max(last - first, 1)
        return low + round(slope * (self.predict(batch_size) - first))

    @property
    def _fits(self) -> int:
        return max((t.batch_size for t in self.trials if t.fits), default=0)

    @property
    def _fails(self) -> int | None:
        return min((t.batch_size for t in self.trials if not t.fits), default=None)

    @property
    def _failures(self) -> int:
        return sum(not trial.fits for trial in self.trials)

    def _is_done(self) -> bool:
        fails, fits = self._fails, self._fits
        if len(self.trials) >= MOST_TRIALS:
            return True
        if fits and self._failures >= self.most_failures:
            return True
        if fails is None:
            return fits >= self.sizes[-1]
        return fails <= max(self._above(fits), int(TOLERANCE * fits))

    def _above(self, size: int) -> int:
        return self.sizes[bisect_right(self.sizes, size)]

    def _next(self) -> int:
        below = bisect_right(self.sizes, self._wanted())
        size = self.sizes[max(below - 1, 0)]
        return size if size > self._fits else self._above(self._fits)

    def _wanted(self) -> int:
        fits, fails = self._fits, self._fails
        if not self.trials:
            return self._most(lambda size: self.predict(size) * _CAUTION)
        if fails is None:
            probe = max(fits + 1, round(_PROBE * fits))
            return max(self._most(self.corrected), probe)
        if not fits:
            peak_is_known = any(trial.peak_bytes is not None for trial in self.trials)
            most = self._most(self.corrected) if peak_is_known else fails
            return max(min(most, fails // 2), 1)
        # If this batch size fails too, the search is within the tolerance.
        close = max(fits + 1, int(TOLERANCE * fits))
        if any(trial.peak_bytes is not None for trial in self.trials):
            target = min(self._most(self.corrected), fails)
            close = max(close, fits + int(_BOLDNESS * (target - fits)))
        return min(close, fails - 1)

    def _most(self, peak: Callable[[int], float]) -> int:
        fitting = bisect_right(self.sizes, self.limit_bytes, key=peak)
        return self.sizes[max(fitting - 1, 0)]
