"""Clustering: the kernels of a model get few different values."""

from typing import Any

import numpy as np

from kerasmem.compression.account import account, select, sqnr_db, why_left_alone
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.cluster.kmeans import (
    Line,
    centroids,
    line_of_bins,
    nearest,
    tables_of,
)
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


def cluster_weights(
    model: Model, config: Cluster, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model whose kernels have few values, and every weight of it.

    Raises:
        ModelError: if the model has nothing to cluster, or a weight is not finite.
        ConfigError: if a pattern matches no weight.
    """
    del context
    selection, left_alone = chosen(model, config)
    progress = Progress(NAME, sum(weight.nbytes for weight in selection))
    changes = []
    for weight in selection:
        values = array_of(weight.variable)
        if not np.isfinite(values).all():
            raise ModelError(
                f"The weight {weight.path!r} has entries that are NaN or infinite, "
                "which no value stands for. Train the model anew."
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
    """Return a weight each entry of which is the nearest of few values.

    Args:
        values: the weight, finite.
        config: how many values, and where k-means begins.
        axis: the axis of channels that get values of their own, None for the same in
            the whole weight.
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
    """Return the weights that are clustered, and the others, each with the reason.

    Raises:
        ModelError: if there is none to cluster.
        ConfigError: if a pattern matches no weight.
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
