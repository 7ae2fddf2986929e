"""Applies weight clustering to the kernels of a model.

Centroids are found by one-dimensional k-means on sorted values. The members of a
centroid are a contiguous range of sorted values, and cumulative sums give their mean.
An iteration therefore needs k binary searches instead of a pass over the values. Large
weights are reduced to a histogram with a relative bin width of 0.1 %. Each bin counts
as the mean of its members, so bins with one distinct value are exact.

S. P. Lloyd: Least squares quantization in PCM, 1982. David Arthur, Sergei
Vassilvitskii: k-means++: The Advantages of Careful Seeding, 2007.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.compression.account import account, select, sqnr_db, why_left_alone
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.technique import Context
from kerasmem.errors import ModelError
from kerasmem.files.threads import PIECE, map_entries, map_pieces
from kerasmem.graph.kernels import is_embedding, reduced_axes
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.values import array_of
from kerasmem.records import WeightChange
from kerasmem.stages import Progress
from kerasmem.types import Model

NAME = "cluster"

ITERATIONS = 100
_SEEDING_SAMPLE = 20_000  # values that k-means++ samples from
_TRIALS = 4  # candidates per centroid

_BIN_BITS = 19
"""Sign, exponent and ten mantissa bits of a float32, the precision of float16."""


@dataclass(frozen=True)
class Line:
    """Sorted distinct float64 numbers with their counts."""

    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Line":
        """Creates the line of an array of any shape."""
        numbers, counts = np.unique(values, return_counts=True)
        return cls(numbers.astype("float64"), counts)

    @property
    def size(self) -> int:
        """Total number of occurrences."""
        return int(self.counts.sum())

    def at(self, places: np.ndarray) -> np.ndarray:
        """Returns the numbers at sorted positions from 0 to `size - 1`."""
        ends = np.cumsum(self.counts)
        return self.values[np.searchsorted(ends, places, side="right")]

    def where(self, wanted: np.ndarray) -> "Line":
        """Returns the line of the values whose flag is `True`."""
        return Line(self.values[wanted], self.counts[wanted])


def line_of_bins(zeros: int, counts: np.ndarray, sums: np.ndarray) -> Line:
    """Creates a line from the output of `tables_of`, with one number per bin."""
    come = np.flatnonzero(counts)
    values, counts = sums[come] / counts[come], counts[come]
    if zeros:
        place = np.searchsorted(values, 0.0)
        values = np.insert(values, place, 0.0)
        counts = np.insert(counts, place, zeros)
    return Line(values, counts)


def tables_of(values: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Returns the number of zeros, and counts and sums of other values per bin.

    `values` must be finite and can have any shape.
    """
    others = values[values != 0]
    bits = others.astype(np.float32, copy=False).view(np.uint32)
    # Bins must sort like the numbers, so the bits of negative numbers are inverted.
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
    """Returns at most `count` cluster centers, ascending, float64.

    With `with_zero`, zero is a fixed center. The line must then contain zero.
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
        # A centroid without members keeps its position.
        means = np.diff(sums[edges]) / np.maximum(sizes, 1)
        means = np.where((sizes > 0) & ~stays, means, centers)
        if np.array_equal(means, centers):
            break
        centers = means
    return centers


def nearest(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Returns the index of the nearest centroid for each value."""
    return np.searchsorted((of[1:] + of[:-1]) / 2, values)


def _even(line: Line, count: int, _rng: np.random.Generator) -> np.ndarray:
    return np.linspace(line.values[0], line.values[-1], count)


def _quantiles(line: Line, count: int, _rng: np.random.Generator) -> np.ndarray:
    places = (np.arange(count) + 0.5) * line.size / count
    quantiles = np.unique(line.at(places.astype(int)))
    if len(quantiles) < count:
        # Quantiles coincide for frequent values; use the free centroids for the others.
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


def cluster_weights(
    model: Model, config: Cluster, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Clusters the kernels of a model in place.

    Raises:
        ModelError: If the model has nothing to cluster, or a weight is not finite.
        ConfigError: If a pattern matches no weight.
    """
    del context
    selection, left_alone = chosen(model, config)
    progress = Progress(NAME, sum(weight.nbytes for weight in selection))
    changes = []
    for weight in selection:
        values = array_of(weight.variable)
        if not np.isfinite(values).all():
            raise ModelError(
                f"The weight {weight.path!r} contains NaN or infinite entries, so it "
                "cannot be clustered. Next: train the model again."
            )
        few = few_values(values, config, channel_axis(weight, config))
        changes.append(
            account(
                weight,
                NAME,
                f"{_count_of(few)} values",
                changed=not np.array_equal(few, values),
                sqnr_db=sqnr_db(values, few),
            )
        )
        weight.variable.assign(few)
        progress.add(weight.nbytes)
    changes += [account(weight, NAME, why, changed=False) for weight, why in left_alone]
    return model, changes


def few_values(values: np.ndarray, config: Cluster, axis: int | None) -> np.ndarray:
    """Rounds the entries of a finite weight to their nearest cluster centers.

    `axis` is the channel axis for separate values per channel, or `None`.
    """
    rng = np.random.default_rng(config.seed)
    if axis is None:
        return _nearest_of_few(values, config, rng)
    channels = np.moveaxis(values, axis, 0)
    few = np.empty(channels.shape, values.dtype)
    for channel, entries in enumerate(channels):
        few[channel] = _nearest_of_few(entries, config, rng)
    return np.moveaxis(few, 0, axis)


def _nearest_of_few(
    values: np.ndarray, config: Cluster, rng: np.random.Generator
) -> np.ndarray:
    line = _line(values)
    has_zeros = config.keep_zeros and bool((line.values == 0).any())
    row = centroids(line, config.n, config.start, rng, with_zero=has_zeros)
    return map_entries(lambda _, some: row[nearest(some, row)], values)


def _line(values: np.ndarray) -> Line:
    if values.size <= PIECE:
        return Line.of(values)
    tables = map_pieces(lambda _, some: tables_of(some), values)
    zeros, counts, sums = next(tables)
    for each in tables:
        zeros, counts, sums = zeros + each[0], counts + each[1], sums + each[2]
    return line_of_bins(zeros, counts, sums)


def _count_of(values: np.ndarray) -> int:
    different = np.empty(0, values.dtype)
    for some in map_pieces(lambda _, piece: np.unique(piece), values):
        different = np.union1d(different, some)
    return len(different)


def chosen(
    model: Model, config: Cluster
) -> tuple[list[Weight], list[tuple[Weight, str]]]:
    """Returns the weights to cluster, and the other weights with the reasons.

    Raises:
        ModelError: If there is no weight to cluster.
        ConfigError: If a pattern matches no weight.
    """

    def why_not(weight: Weight) -> str | None:
        include = config.include if len(weight.variable.shape) >= 2 else ()
        return why_left_alone(weight, include, config.exclude)

    return select(
        model.name,
        list(weights(model)),
        {"include": config.include, "exclude": config.exclude},
        why_not,
        "cluster: none of its {count} weights is a float kernel or embedding table "
        "outside `exclude`. Next: cluster before quantizing.",
    )


def channel_axis(weight: Weight, config: Cluster) -> int | None:
    """Returns the axis with separate values per channel, or `None`.

    For a kernel, this is its last output axis. Embedding tables have no separate
    values, because their rows are too short.
    """
    if config.granularity == "tensor" or is_embedding(weight):
        return None
    rank = len(weight.variable.shape)
    return max(set(range(rank)) - set(reduced_axes(weight)), default=rank - 1)
