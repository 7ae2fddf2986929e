"""Number of multiplications of a model with a subset of its channels."""

import math
from typing import Any

import keras
import numpy as np

from kerasmem.graph.channels.labelled_calls import ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import OUT
from kerasmem.graph.channels.walk import LabelledModel, label_channels
from kerasmem.graph.layer_table import entry_of
from kerasmem.types import Model, Operation

_BY_STEP = frozenset(
    [
        *("recurrent", "bidirectional"),
        *("multi_head_attention", "grouped_query_attention"),
    ]
)
"""Families that apply their kernels at every step of a sequence."""


def flops(model: Model) -> int:
    """Returns the floating-point operations of a model for one sample.

    Counts two per multiplication with a kernel, see `multiplications`. Weights must be
    floats, because the shape of quantized kernels can differ.
    """
    labels = label_channels(model)
    return 2 * multiplications(labels, all_channels(labels))


def all_channels(labelled: LabelledModel) -> ChannelSubset:
    """Returns the subset with all channels."""
    labels = labelled.labels
    return ChannelSubset(np.arange(labels.count), np.zeros(0, np.int64), labels.uses)


def multiplications(labelled: LabelledModel, subset: ChannelSubset) -> int:
    """Returns the multiplications with kernels for one sample.

    Axes of unknown length count as 1. Products of two tensors, such as queries and
    keys, are not counted.
    """
    return sum(
        math.prod(subset.weight_shape(variable)) * _places(labelled, call)
        for call in labelled.calls.values()
        for variable in _of_layer(call.operation)
        if len(variable.shape) >= 2 and variable.name.endswith("kernel")
    )


def _of_layer(operation: Operation) -> list[Any]:
    is_layer = isinstance(operation, keras.layers.Layer)
    is_model = isinstance(operation, keras.Model)
    return operation.weights if is_layer and not is_model else []


def _places(labelled: LabelledModel, call: LabelledCall) -> int:
    entry = entry_of(call.operation)
    if entry.channels in _BY_STEP:
        return call.x.shape[1] or 1
    if entry.kernel == "einsum":
        channels = sum(
            use.labels.size
            for use in labelled.labels.uses
            if use.variable is call.operation.kernel and use.role == OUT
        )
        return _size(call.shape) // max(channels, 1)
    shape = list(call.x.shape if entry.kernel == "transposed" else call.shape)
    first = getattr(call.operation, "data_format", None) == "channels_first"
    del shape[1 if first else -1]
    return _size(tuple(shape))


def _size(shape: tuple[int | None, ...]) -> int:
    return math.prod(size or 1 for size in shape[1:])
