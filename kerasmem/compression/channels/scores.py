"""How much each channel of a model matters, by a criterion."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.channels.activations import mean_activations
from kerasmem.compression.channels.math import distances, per_label
from kerasmem.compression.gradient_evidence import sums_over_samples
from kerasmem.graph.channels import LabelledModel
from kerasmem.graph.channels.labels import CHANNEL, OUT, Use, varying
from kerasmem.graph.values import to_numpy

if TYPE_CHECKING:
    from kerasmem.compression.channels.config import PruneChannels


Entries = Iterator[tuple[np.ndarray, np.ndarray]]
"""Numbers for entries of a weight, and the classes that they count for."""


def class_scores(
    models: tuple[Any, Any],
    found: LabelledModel,
    classes: np.ndarray,
    choice: "PruneChannels",
    data: Any = None,
) -> np.ndarray:
    """Return the score of every class; the smallest go first.

    Args:
        models: the model, compiled for the criterion `"taylor"`, and its graph.
        found: the labels of the graph.
        classes: the class of every label.
        choice: the criterion, and the seed of the random one.
        data: samples, for the criteria that look at some.

    Raises:
        ConfigError: if data is missing.
        ModelError: if the criterion takes a loss and the model has none.
    """
    model, graph = models
    if choice.criterion == "random":
        return np.random.default_rng(choice.seed).random(len(classes))
    if choice.criterion == "taylor":
        return _added(_of_gradients(model, found.labels.uses, classes, data), classes)
    if choice.criterion == "activation":
        seen = mean_activations(graph, found, classes, data)
        weighed = _added(_of_weights(found.labels.uses, classes, "l2"), classes)
        # What never leaves a layer, such as its heads, is ranked by its weights.
        return np.where(np.isnan(seen), weighed, seen)
    return _added(_of_weights(found.labels.uses, classes, choice.criterion), classes)


def _added(given: Entries, classes: np.ndarray) -> np.ndarray:
    total = np.zeros(len(classes))
    for entries, names in given:
        total += per_label(entries, names, len(classes))
    return total


def _of_gradients(
    model: Any, uses: list[Use], classes: np.ndarray, data: Any
) -> Entries:
    makers = [use for use in uses if use.role == OUT]
    sums = sums_over_samples(model, [use.variable for use in makers], "taylor", data)
    for use, entries in zip(makers, sums, strict=True):
        yield entries, classes[use.labels]


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


def _counts(use: Use, criterion: str) -> bool:
    if criterion == "group":
        return True
    if criterion == "batch_norm":
        return use.role == CHANNEL and use.variable.name == "gamma"
    return use.role == OUT
