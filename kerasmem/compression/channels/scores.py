"""Importance scores of channels."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from kerasmem.backends.patching import LayerCall
from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.ranking import distances, per_label
from kerasmem.compression.evidence import observe_samples, sums_over_samples
from kerasmem.graph.channels import LabelledModel
from kerasmem.graph.channels.labelled_calls import LabelledCall
from kerasmem.graph.channels.labels import CHANNEL, IN, OUT, Use, varying
from kerasmem.graph.layers import own_graph, sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.types import Dataset, Model

Entries = Iterator[tuple[np.ndarray, np.ndarray]]
"""Values of weight entries, and the classes of these entries."""


def class_scores(
    models: tuple[Any, Any],
    labelled: LabelledModel,
    classes: np.ndarray,
    config: PruneChannels,
    data: Dataset = None,
) -> np.ndarray:
    """Returns the importance score of every class. The lowest are removed first.

    `models` are the model, compiled for the criterion `"taylor"`, and its graph.
    `labelled` and `classes` refer to the graph.
    """
    (model, graph), uses = models, labelled.labels.uses
    if config.criterion != "activation":
        return weight_scores(model, uses, classes, config, data)
    means = mean_activations(graph, labelled, classes, data)
    # Channels inside a layer, such as heads, have no activations to measure.
    weight_means = _added(_of_weights(uses, classes, "l2"), classes)
    return np.where(np.isnan(means), weight_means, means)


def weight_scores(
    model: Model,
    uses: list[Use],
    classes: np.ndarray,
    config: PruneChannels,
    data: Dataset,
) -> np.ndarray:
    """Returns weight-based scores of every class. See `class_scores`."""
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


_SAMPLES = 512


def mean_activations(
    model: Model, labelled: LabelledModel, classes: np.ndarray, data: Dataset
) -> np.ndarray:
    """Returns the mean absolute activation of each class that enters a kernel.

    Runs the model in inference mode on the first 512 samples, or on the first batch of
    batched data. If several layers consume a class, their means are added. Classes that
    no layer with a kernel consumes have the value NaN.
    """
    total, has_mean = np.zeros(len(classes)), np.zeros(len(classes), bool)
    calls = {id(call.operation): call for call in _consuming(labelled)}

    def add(now: LayerCall) -> None:
        call = calls[id(now.layer)]
        # Keras adds keyword arguments, such as a mask.
        own = {n: now.kwargs[n] for n in call.kwargs if n in now.kwargs}
        tensors = keras.tree.flatten((now.args, own))
        tensors = [x for x in tensors if keras.ops.is_tensor(x) and x.shape]
        for x, tensor in zip(tensors, call.inputs, strict=False):
            names = classes[tensor.array]
            sizes = np.abs(to_numpy(x).astype("float32", copy=False))
            alone = tuple(a for a, size in enumerate(names.shape) if size == 1)
            means = per_label(sizes.mean(alone, keepdims=True), names, len(classes))
            places = np.bincount(names.ravel(), minlength=len(classes))
            total[:] += means / np.maximum(places, 1) * len(sizes)
            has_mean[names] = True

    layers = [call.operation for call in calls.values()]
    count = observe_samples(
        model, layers, add, data, samples=_SAMPLES, criterion="activation"
    )
    return np.where(has_mean, total / count, np.nan)


def _consuming(labelled: LabelledModel) -> list[LabelledCall]:
    kernel_ids = {id(use.variable) for use in labelled.labels.uses if use.role == IN}
    layers = {
        id(call.operation): call
        for call in labelled.calls.values()
        if isinstance(call.operation, keras.layers.Layer)
        and own_graph(call.operation) is None
    }
    return [
        call
        for call in layers.values()
        if any(
            id(variable) in kernel_ids
            for inner in sublayers(call.operation)
            for variable in inner.weights
        )
    ]
