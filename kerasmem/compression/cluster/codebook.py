"""The few values that the entries of a weight take."""

import numpy as np

from kerasmem.compression.cluster.kmeans import centroids, nearest


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
