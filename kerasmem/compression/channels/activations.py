"""How large the activations are that each channel hands on."""

from typing import Any

import keras
import numpy as np

from kerasmem.compression.channels.math import per_label
from kerasmem.errors import ConfigError
from kerasmem.files.data import input_batches, sample_inputs
from kerasmem.graph.channels import LabelledModel
from kerasmem.graph.channels.call import LabelledCall
from kerasmem.graph.channels.labels import IN
from kerasmem.graph.layers import own_graph, sublayers
from kerasmem.graph.observe import LayerCall, observe
from kerasmem.graph.values import to_numpy

_SAMPLES, _BATCH_SIZE = 512, 32


def mean_activations(
    model: Any, found: LabelledModel, classes: np.ndarray, data: Any
) -> np.ndarray:
    """Return the mean size of what each class hands to the weights that consume it.

    The model is called on the first 512 samples, of batched data on the first batch,
    as `predict` would. Where several layers consume a class, their means are added up.

    Args:
        model: the model with a graph that was labelled.
        found: its labels.
        classes: the class of every label.
        data: samples in any form that `kerasmem.files.data` lists.

    Returns:
        One number per class, NaN for what no layer hands on to another.

    Raises:
        ConfigError: if there are no samples.
    """
    if data is None:
        raise ConfigError(
            "The criterion 'activation' looks at what channels are on samples: give "
            "them as data=x (--data on the command line). Received: data=None."
        )
    total, seen = np.zeros(len(classes)), np.zeros(len(classes), bool)
    calls = {id(call.operation): call for call in _consuming(found)}

    def add(now: LayerCall) -> None:
        labelled = calls[id(now.layer)]
        # Keras adds arguments of its own, such as a mask.
        own = {n: now.kwargs[n] for n in labelled.kwargs if n in now.kwargs}
        given = [x for x in keras.tree.flatten((now.args, own)) if _is_tensor(x)]
        for x, tensor in zip(given, labelled.inputs, strict=False):
            names = classes[tensor.array]
            sizes = np.abs(to_numpy(x).astype("float32", copy=False))
            alone = tuple(a for a, size in enumerate(names.shape) if size == 1)
            means = per_label(sizes.mean(alone, keepdims=True), names, len(classes))
            places = np.bincount(names.ravel(), minlength=len(classes))
            total[:] += means / np.maximum(places, 1) * len(sizes)
            seen[names] = True

    batches = input_batches((sample_inputs(data, _SAMPLES),), _SAMPLES, _BATCH_SIZE)
    layers = [call.operation for call in calls.values()]
    count = observe(model, batches, layers, inputs=add)
    return np.where(seen, total / count, np.nan)


def _consuming(found: LabelledModel) -> list[LabelledCall]:
    """Return one call of every layer with weights that consume channels."""
    consumed = {id(use.variable) for use in found.labels.uses if use.role == IN}
    layers = {
        id(call.operation): call
        for call in found.calls.values()
        if isinstance(call.operation, keras.layers.Layer)
        and own_graph(call.operation) is None
    }
    return [
        call
        for call in layers.values()
        if any(
            id(variable) in consumed
            for inner in sublayers(call.operation)
            for variable in inner.weights
        )
    ]


def _is_tensor(x: Any) -> bool:
    return x is not None and keras.ops.is_tensor(x) and bool(x.shape)
