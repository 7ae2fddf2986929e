"""Walking a model, giving its weights few values, a few pieces of them at a time.

What the values of a weight are is found from all of it: from its different entries if
it is small, else from a histogram. Then each entry takes the nearest, wherever in the
weight it is read. A channel with values of its own is looked at as a whole.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kerasmem.compression.account import account, decibels, select, why_left_alone
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.cluster.kmeans import (
    Line,
    centroids,
    line_of_bins,
    nearest,
    tables_of,
)
from kerasmem.compression.technique import Context
from kerasmem.compression.working import LazyChanges, Streams, working_copy
from kerasmem.errors import ModelError
from kerasmem.files.entries import PIECE, Readable, cuts
from kerasmem.graph.kernels import is_embedding, reduced_axes
from kerasmem.graph.layers import Weight
from kerasmem.records import WeightChange
from kerasmem.stages import Progress

NAME = "cluster"
_HELD_PIECES = 4
"""Pieces in memory at a time, of channels that have centroids of their own."""


def cluster_weights(
    model: Any, config: Cluster, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model whose kernels have few values, and every weight of it.

    Raises:
        ModelError: if the model has nothing to cluster, or a weight is not finite.
        ConfigError: if a pattern matches no weight.
    """
    model = working_copy(model, context)
    streams = Streams(lambda _: None)
    summarize = cluster_in_blocks(model, config, streams)
    streams.assign()
    return model, summarize()


def cluster_in_blocks(model: Any, config: Cluster, streams: Streams) -> LazyChanges:
    """Give the weights of a model few values.

    Args:
        model: the model, which may be described; it stays as it is.
        config: the choice.
        streams: get the values.

    Raises:
        ModelError: if the model has nothing to cluster, or a weight is not finite.
        ConfigError: if a pattern matches no weight.
    """
    clustered, left_alone = chosen(model, config)
    progress = Progress(NAME, 2 * sum(weight.nbytes for weight in clustered))
    few = [
        FewValues(
            streams.readable(weight.variable),
            config,
            channel_axis(weight, config),
            (weight.path, progress),
        )
        for weight in clustered
    ]
    changes = []
    for weight, entries in zip(clustered, few, strict=True):
        streams.put(weight.variable, entries)
        changes.append(entries.account(weight))
    changes += [account(weight, NAME, why, changed=False) for weight, why in left_alone]
    return lambda: changes


class FewValues(Readable):
    """A weight each entry of which has the value that stands for it best.

    Args:
        source: the weight.
        config: how many values, and where k-means begins.
        axis: the axis of channels that get values of their own, None for the same in
            the whole weight.
        shown: name of the weight, and what counts the bytes that are read.

    Raises:
        ModelError: if an entry is not finite.
    """

    def __init__(
        self,
        source: Readable,
        config: Cluster,
        axis: int | None,
        shown: tuple[str, Progress | None],
    ) -> None:
        super().__init__(source.shape, source.dtype)
        self._source, (self._path, self._progress) = source, shown
        self._channels = 1 if axis is None else self.shape[axis]
        behind = () if axis is None else self.shape[axis + 1 :]
        self._trail = self.size if axis is None else int(np.prod(behind, dtype=int))
        rng = np.random.default_rng(config.seed)
        self._values = [
            centroids(
                line,
                config.n,
                config.start,
                rng,
                with_zero=config.keep_zeros and bool((line.values == 0).any()),
            )
            for line in self._lines()
        ]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the entries from one place to another, an array of one axis."""
        values = self._source.read(start, stop)
        found = np.empty_like(values)
        for channel, where in self._rows(start, stop):
            row, entries = self._values[channel], values[where]
            found[where] = row[nearest(entries, row)]
        return found

    def account(self, weight: Weight) -> WeightChange:
        """Return what became of the weight, which is read for it."""

        def compared(cut: tuple[int, int]) -> tuple[np.ndarray, ...]:
            exact, found = self._source.read(*cut), self.read(*cut)
            values, exact = np.unique(found), exact.astype(np.float64)
            lost = exact - found
            counts = np.count_nonzero(exact), np.count_nonzero(found)
            return values, np.array([exact @ exact, lost @ lost]), np.array(counts)

        different, powers, counts = np.empty(0), np.zeros(2), np.zeros(2, int)
        for values, power, count in self.map(compared, self._progress):
            different = np.union1d(different, values)
            powers, counts = powers + power, counts + count
        self._source.nonzero, self.nonzero = map(int, counts)
        return account(
            weight,
            NAME,
            f"{len(different)} values",
            changed=bool(powers[1]),
            sqnr_db=decibels(*powers),
        )

    def _rows(self, start: int, stop: int) -> Iterator[tuple[int, slice]]:
        """Give each channel with where entries of it lie from one place to another."""
        channels, trail = self._channels, self._trail
        if trail == 1:
            for place in range(min(channels, stop - start)):
                yield (start + place) % channels, slice(place, None, channels)
            return
        for place in range(start - start % max(trail, 1), stop, trail):
            where = slice(max(place - start, 0), place + trail - start)
            yield place // trail % channels, where

    def _lines(self) -> Iterator[Line]:
        """Give the entries of each channel in turn."""
        if self._channels == 1:
            yield self._line()
            return
        held = max(_HELD_PIECES * PIECE * self._channels // max(self.size, 1), 1)
        for first in range(0, self._channels, held):
            group = range(first, min(first + held, self._channels))
            parts: list[list[np.ndarray]] = [[] for _ in group]
            for start, stop in cuts(self.size):
                values = self._finite((start, stop))
                for channel, where in self._rows(start, stop):
                    if channel in group:
                        parts[channel - first].append(values[where].copy())
            for part in parts:
                yield Line.of(np.concatenate(part))
            if self._progress is not None:
                self._progress.add(self.nbytes * len(group) // self._channels)

    def _line(self) -> Line:
        if self.size <= PIECE:
            return Line.of(self._finite((0, self.size)))
        tables = self.map(lambda cut: tables_of(self._finite(cut)), self._progress)
        zeros, counts, sums = next(tables)
        for each in tables:
            zeros, counts, sums = zeros + each[0], counts + each[1], sums + each[2]
        return line_of_bins(zeros, counts, sums)

    def _finite(self, cut: tuple[int, int]) -> np.ndarray:
        values = self._source.read(*cut)
        if not np.isfinite(values).all():
            raise ModelError(
                f"The weight {self._path!r} has entries that are NaN or infinite, "
                "which no value stands for. Train the model anew."
            )
        return values


def chosen(
    model: Any, config: Cluster
) -> tuple[list[Weight], list[tuple[Weight, str]]]:
    """Return the weights that are clustered, and the others, each with the reason.

    Raises:
        ModelError: if there is none to cluster.
        ConfigError: if a pattern matches no weight.
    """

    def why_not(weight: Weight) -> str | None:
        include = config.include if len(weight.variable.shape) >= 2 else ()
        return why_left_alone(weight, include, config.exclude)

    return select(
        model,
        {"include": config.include, "exclude": config.exclude},
        why_not,
        "cluster: none of its {count} weights is a float kernel or embedding table "
        "that is not excluded. Cluster before quantizing.",
    )


def channel_axis(weight: Weight, config: Cluster) -> int | None:
    """Return the axis of the channels that have values of their own, None if none has.

    Of a kernel it is the last axis that no output sums over. In an embedding table all
    words have the same: theirs are too short for some of their own.
    """
    if config.granularity == "tensor" or is_embedding(weight):
        return None
    rank = len(weight.variable.shape)
    return max(set(range(rank)) - set(reduced_axes(weight)), default=rank - 1)
