"""k-means along a line, where sorting once makes every step cheap.

Values that are sorted fall into runs: a centroid's members lie between the midpoints to
its neighbors, and their mean is a difference of two sums that are known from the start.
An iteration takes k binary searches, not a pass over the values.

S. P. Lloyd: Least squares quantization in PCM, 1982. David Arthur, Sergei
Vassilvitskii: k-means++: The Advantages of Careful Seeding, 2007.
"""

import numpy as np

ITERATIONS = 100
_SEEDING_SAMPLE = 20_000  # values that k-means++ looks at
_TRIALS = 4  # centroids that it tries for each that it takes


def centroids(
    values: np.ndarray,
    count: int,
    start: str,
    rng: np.random.Generator,
    *,
    with_zero: bool = False,
) -> np.ndarray:
    """Return the values that stand for all, ascending, float64, at most `count`.

    Args:
        values: finite numbers, of any shape, at least one.
        count: how many may stay, from 1; with zero from 2.
        start: `"kmeans++"`; `"linear"` for even steps between the smallest and the
            largest; `"density"` for as many values between each and the next.
        rng: draws for k-means++.
        with_zero: whether zero is one of them and stays where it is; some value is
            zero then.
    """
    line = np.sort(values, axis=None).astype("float64")
    if np.count_nonzero(line[1:] != line[:-1]) < count:
        return np.unique(line)
    sums = np.concatenate([[0.0], np.cumsum(line)])
    if with_zero:
        others = _STARTS[start](line[line != 0], count - 1, rng)
        found = np.union1d(others, [0.0])
    else:
        found = _STARTS[start](line, count, rng)
    fixed = (found == 0) & with_zero
    for _ in range(ITERATIONS):
        edges = np.searchsorted(line, (found[1:] + found[:-1]) / 2)
        edges = np.concatenate([[0], edges, [len(line)]])
        sizes = np.diff(edges)
        # A centroid that nothing is nearest to stays where it is.
        means = np.diff(sums[edges]) / np.maximum(sizes, 1)
        means = np.where((sizes > 0) & ~fixed, means, found)
        if np.array_equal(means, found):
            break
        found = means
    return found


def nearest(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return for every value the place of the nearest of the ascending centroids."""
    return np.searchsorted((of[1:] + of[:-1]) / 2, values)


def _even(line: np.ndarray, count: int, _rng: np.random.Generator) -> np.ndarray:
    return np.linspace(line[0], line[-1], count)


def _quantiles(line: np.ndarray, count: int, _rng: np.random.Generator) -> np.ndarray:
    places = (np.arange(count) + 0.5) * len(line) / count
    found = np.unique(line[places.astype(int)])
    if len(found) < count:
        # Many equal values: the other centroids are for what differs from these.
        others = line[~np.isin(line, found)]
        more = _quantiles(others, min(count - len(found), len(others)), _rng)
        found = np.sort(np.concatenate([found, more]))
    return found


def _plus_plus(line: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return values, each drawn the likelier, the farther it is from those before."""
    step = -(-len(line) // _SEEDING_SAMPLE)
    sample = line[step // 2 :: step]
    taken = [rng.choice(sample)]
    away = np.square(sample - taken[0])
    while len(taken) < count and away.sum() > 0:
        tried = rng.choice(sample, _TRIALS, p=away / away.sum())
        left = np.minimum(away, np.square(sample - tried[:, None]))
        best = left.sum(axis=1).argmin()
        taken.append(tried[best])
        away = left[best]
    return np.sort(taken)


_STARTS = {"kmeans++": _plus_plus, "linear": _even, "density": _quantiles}


def few_values(
    values: np.ndarray,
    count: int,
    *,
    start: str = "kmeans++",
    axis: int | None = None,
    keep_zeros: bool = True,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return a weight with the value in every entry that stands for it best.

    Args:
        values: a weight, finite.
        count: most distinct values.
        start: of k-means, see `kmeans.centroids`.
        axis: the axis of channels that get values of their own, None for the same in
            the whole weight.
        keep_zeros: whether an entry that is zero stays zero, which is a value then.
        rng: draws for k-means++.
    """
    found = np.empty_like(values)
    for entries, into in zip(_rows(values, axis), _rows(found, axis), strict=True):
        row = _row(entries.ravel(), count, start, keep_zeros, rng)
        into[...] = row[nearest(entries, row)]
    return found


def _rows(array: np.ndarray, axis: int | None) -> np.ndarray:
    """Return a view whose first axis is that of what has values of its own."""
    return array[None] if axis is None else np.moveaxis(array, axis, 0)


def _row(
    column: np.ndarray,
    count: int,
    start: str,
    keep_zeros: bool,  # noqa: FBT001
    rng: np.random.Generator,
) -> np.ndarray:
    with_zero = keep_zeros and bool((column == 0).any())
    return centroids(column, count, start, rng, with_zero=with_zero)
