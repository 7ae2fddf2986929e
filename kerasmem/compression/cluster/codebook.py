"""Which value every entry of a weight takes."""

from dataclasses import dataclass

import numpy as np

from kerasmem.compression.cluster.kmeans import centroids, nearest


@dataclass(frozen=True)
class Codebook:
    """The values of one weight, and which entry takes which.

    Args:
        values: distinct values, (books, n) float64: one row for the whole weight, or
            one for each channel; rows that need fewer repeat their last value.
        codes: for every entry its place in a row, of the weight's shape.
        axis: the axis of the channels, None where one row is for all.
    """

    values: np.ndarray
    codes: np.ndarray
    axis: int | None

    def decoded(self) -> np.ndarray:
        """Return the weight that this stands for, float64."""
        if self.axis is None:
            return self.values[0][self.codes]
        by_channel = np.moveaxis(self.codes, self.axis, -1)
        channels = np.arange(by_channel.shape[-1])
        return np.moveaxis(self.values[channels, by_channel], -1, self.axis)


def make_codebook(
    values: np.ndarray,
    count: int,
    *,
    start: str = "kmeans++",
    axis: int | None = None,
    keep_zeros: bool = True,
    rng: np.random.Generator,
) -> Codebook:
    """Return the values that stand for those of a weight best, by k-means.

    Args:
        values: a weight, finite.
        count: most distinct values in a row.
        start: of k-means, see `kmeans.centroids`.
        axis: the axis of channels that get rows of their own, None for one row.
        keep_zeros: whether an entry that is zero stays zero, and is one of the values.
        rng: draws for k-means++.
    """
    columns = (
        values.reshape(1, -1)
        if axis is None
        else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    )
    rows, codes = [], np.empty(columns.shape, np.uint8)
    for place, column in enumerate(columns):
        row = _row(column, count, start, keep_zeros, rng)
        codes[place] = nearest(column, row)
        if keep_zeros:
            zero = np.flatnonzero(row == 0)
            codes[place][column == 0] = zero[0] if len(zero) else 0
        rows.append(np.pad(row, (0, count - len(row)), mode="edge"))
    shape = values.shape if axis is None else np.moveaxis(values, axis, 0).shape
    codes = codes.reshape(shape)
    return Codebook(
        np.array(rows), codes if axis is None else np.moveaxis(codes, 0, axis), axis
    )


def _row(
    column: np.ndarray,
    count: int,
    start: str,
    keep_zeros: bool,  # noqa: FBT001
    rng: np.random.Generator,
) -> np.ndarray:
    others = column[column != 0]
    if not keep_zeros or len(others) == len(column):
        return centroids(column, count, start, rng)
    if not len(others):
        return np.zeros(1)
    found = centroids(others, count - 1, start, rng)
    return np.union1d(found, [0.0])
