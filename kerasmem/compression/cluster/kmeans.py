"""k-means along a line, where counting once makes every step cheap.

Values that are sorted fall into runs: a centroid's members lie between the midpoints to
its neighbors, and their mean is a difference of two sums that are known from the start.
An iteration takes k binary searches, not a pass over the values. Of many values a
histogram stands for them, in bins of a 1000th of what they hold: each bin counts as its
mean, so that few different values stay what they are.

S. P. Lloyd: Least squares quantization in PCM, 1982. David Arthur, Sergei
Vassilvitskii: k-means++: The Advantages of Careful Seeding, 2007.
"""

from dataclasses import dataclass

import numpy as np

ITERATIONS = 100
_SEEDING_SAMPLE = 20_000  # values that k-means++ looks at
_TRIALS = 4  # centroids that it tries for each that it takes

_BIN_BITS = 19
"""Of a float32: its sign, its exponent and ten bits of its mantissa, as float16 has."""


@dataclass(frozen=True)
class Line:
    """Numbers along a line, each with how often it comes.

    Args:
        values: different numbers, ascending, float64.
        counts: how often each comes, from 1.
    """

    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Line":
        """Return the line of an array of any shape."""
        numbers, counts = np.unique(values, return_counts=True)
        return cls(numbers.astype("float64"), counts)

    @property
    def size(self) -> int:
        """How many numbers there are in all."""
        return int(self.counts.sum())

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at places from 0 to `size - 1`."""
        ends = np.cumsum(self.counts)
        return self.values[np.searchsorted(ends, places, side="right")]

    def where(self, wanted: np.ndarray) -> "Line":
        """Return the line without the values whose flag is False."""
        return Line(self.values[wanted], self.counts[wanted])


def line_of_bins(zeros: int, counts: np.ndarray, sums: np.ndarray) -> Line:
    """Return the line of all numbers, a bin as one number.

    Args:
        zeros: how many zeros there are.
        counts: of all other numbers by bin, as `tables_of` counts them.
        sums: of these.
    """
    come = np.flatnonzero(counts)
    values, counts = sums[come] / counts[come], counts[come]
    if zeros:
        place = np.searchsorted(values, 0.0)
        values = np.insert(values, place, 0.0)
        counts = np.insert(counts, place, zeros)
    return Line(values, counts)


def tables_of(values: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Return how many zeros there are, and counts and sums of all else by bin.

    Args:
        values: finite numbers, of any shape.
    """
    others = values[values != 0]
    bits = others.astype(np.float32, copy=False).view(np.uint32)
    # In the order of the numbers: those of negative ones are turned around.
    sort_keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    bins = sort_keys >> np.uint32(32 - _BIN_BITS)
    size = 1 << _BIN_BITS
    counts = np.bincount(bins, minlength=size)
    sums = np.bincount(bins, others.astype(np.float64), minlength=size)
    return values.size - others.size, counts, sums


def centroids(
    line: Line,
    count: int,
    start: str,
    rng: np.random.Generator,
    *,
    with_zero: bool = False,
) -> np.ndarray:
    """Return the values that stand for all, ascending, float64, at most `count`.

    Args:
        line: the numbers, at least one.
        count: how many may stay, from 1; with zero from 2.
        start: `"kmeans++"`; `"linear"` for even steps between the smallest and the
            largest; `"density"` for as many values between each and the next.
        rng: draws for k-means++.
        with_zero: whether zero is one of them and stays where it is; some value is
            zero then.
    """
    if len(line.values) <= count:
        return line.values
    ends = np.concatenate([[0], np.cumsum(line.counts)])
    sums = np.concatenate([[0.0], np.cumsum(line.values * line.counts)])
    if with_zero:
        others = _STARTS[start](line.where(line.values != 0), count - 1, rng)
        centers = np.union1d(others, [0.0])
    else:
        centers = _STARTS[start](line, count, rng)
    stays = (centers == 0) & with_zero
    for _ in range(ITERATIONS):
        edges = np.searchsorted(line.values, (centers[1:] + centers[:-1]) / 2)
        edges = np.concatenate([[0], edges, [len(line.values)]])
        sizes = np.diff(ends[edges])
        # A centroid that nothing is nearest to stays where it is.
        means = np.diff(sums[edges]) / np.maximum(sizes, 1)
        means = np.where((sizes > 0) & ~stays, means, centers)
        if np.array_equal(means, centers):
            break
        centers = means
    return centers


def nearest(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return for every value the place of the nearest of the ascending centroids."""
    return np.searchsorted((of[1:] + of[:-1]) / 2, values)


def _even(line: Line, count: int, _rng: np.random.Generator) -> np.ndarray:
    return np.linspace(line.values[0], line.values[-1], count)


def _quantiles(line: Line, count: int, _rng: np.random.Generator) -> np.ndarray:
    places = (np.arange(count) + 0.5) * line.size / count
    quantiles = np.unique(line.at(places.astype(int)))
    if len(quantiles) < count:
        # Many equal values: the other centroids are for what differs from these.
        others = line.where(~np.isin(line.values, quantiles))
        more = _quantiles(others, min(count - len(quantiles), len(others.values)), _rng)
        quantiles = np.sort(np.concatenate([quantiles, more]))
    return quantiles


def _plus_plus(line: Line, count: int, rng: np.random.Generator) -> np.ndarray:
    step = -(-line.size // _SEEDING_SAMPLE)
    sample = line.at(np.arange(step // 2, line.size, step))
    seeds = [rng.choice(sample)]
    away = np.square(sample - seeds[0])
    while len(seeds) < count and away.sum() > 0:
        candidates = rng.choice(sample, _TRIALS, p=away / away.sum())
        distances = np.minimum(away, np.square(sample - candidates[:, None]))
        best = distances.sum(axis=1).argmin()
        seeds.append(candidates[best])
        away = distances[best]
    return np.sort(seeds)


_STARTS = {"kmeans++": _plus_plus, "linear": _even, "density": _quantiles}
