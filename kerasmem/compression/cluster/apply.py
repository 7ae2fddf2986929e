"""Applies weight clustering to the kernels of a model."""

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
