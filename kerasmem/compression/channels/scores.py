"""Importance scores of channels."""

from collections.abc import Iterator

import numpy as np

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.ranking import distances, per_label
from kerasmem.compression.evidence import sums_over_samples
from kerasmem.graph.channels.labels import CHANNEL, OUT, Use, varying
from kerasmem.graph.values import to_numpy
from kerasmem.types import Dataset, Model

Entries = Iterator[tuple[np.ndarray, np.ndarray]]
"""Values of weight entries, and the classes of these entries."""


def weight_scores(
    model: Model,
    uses: list[Use],
    classes: np.ndarray,
    config: PruneChannels,
    data: Dataset,
) -> np.ndarray:
    """Returns the importance score of every class. The lowest are removed first.

    `model` is compiled for the criterion `"taylor"`. `uses` and `classes` may refer to
    its graph.
    """
    if config.criterion == "random":
        return np.random.default_rng(config.seed).random(len(classes))
    if config.criterion == "taylor":
        return _added(_of_gradients(model, uses, classes, data), classes)
    return _added(_of_weights(uses, classes, config.criterion), classes)


def _added(entries: Entries, classes: np.ndarray) -> np.ndarray:
    total = np.zeros(len(classes))
    for values, names in entries:
        total += per_label(values, names, len(classes))
    return total


def _of_gradients(
    model: Model, uses: list[Use], classes: np.ndarray, data: Dataset
) -> Entries:
    makers = [use for use in uses if use.role == OUT]
    variables = {id(use.variable): use.variable for use in makers}
    sums = sums_over_samples(model, list(variables.values()), "taylor", data)
    entries = dict(zip(variables, sums, strict=True))
    for use in makers:
        yield entries[id(use.variable)], classes[use.labels]


def _of_weights(uses: list[Use], classes: np.ndarray, criterion: str) -> Entries:
    for use in uses:
        if not _counts(use, criterion):
            continue
        values = to_numpy(use.variable).astype("float32", copy=False)
        axes = varying(classes[use.labels])
        if criterion == "fpgm" and axes:
            apart = distances(values, axes[0])
            line = np.moveaxis(classes[use.labels], axes[0], 0)
            names = line.reshape(line.shape[0], -1)[:, 0]
            yield apart, names
        elif criterion in ("l1", "batch_norm"):
            yield np.abs(values), classes[use.labels]
        else:
            yield np.square(values), classes[use.labels]


def is_scale(use: Use) -> bool:
    """Returns whether a weight is the scale of a BatchNormalization layer."""
    return use.role == CHANNEL and use.variable.name == "gamma"


def _counts(use: Use, criterion: str) -> bool:
    if criterion == "group":
        return True
    if criterion == "batch_norm":
        return is_scale(use)
    return use.role == OUT
