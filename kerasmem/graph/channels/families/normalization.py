"""Normalization: per channel, or over all of them."""

from typing import Any

import numpy as np

from kerasmem.graph.channels.arrays import varying
from kerasmem.graph.channels.call import Call
from kerasmem.graph.channels.kept import Kept
from kerasmem.graph.channels.labels import CHANNEL


def per_channel(call: Call) -> list[np.ndarray]:
    """Label BatchNormalization: statistics, scale and offset for every channel."""
    layer = call.operation
    vector = call.labels.only_along(call.x, layer.axis)
    for variable in _own(layer):
        call.labels.weigh_axis(variable, CHANNEL, 0, vector)
    return [call.x.array]


def over_axes(call: Call) -> list[np.ndarray]:
    """Label LayerNormalization and the like: entries along its axes stay together."""
    axis = call.operation.axis
    axes = [axis] if isinstance(axis, int) else list(axis)
    why = f"{call.operation.name!r} normalizes all of its channels together"
    return [call.labels.join(call.x.array, axes, why)]


def over_groups(call: Call) -> list[np.ndarray]:
    """Label GroupNormalization: whole groups go, so that statistics stay."""
    layer, labels = call.operation, call.labels
    vector = labels.only_along(call.x, layer.axis)
    groups = len(vector) if layer.groups == -1 else layer.groups
    why = f"{layer.name!r} normalizes all of its channels together"
    labels.join(vector.reshape(groups, -1), [1], why)
    for variable in _own(layer):
        labels.weigh_axis(variable, CHANNEL, 0, vector)
    return [call.x.array]


def group_config(call: Call, kept: Kept) -> dict[str, Any]:
    """Return the new number of groups."""
    layer = call.operation
    before = call.x.shape[layer.axis]
    after = kept.shape(call.x)[layer.axis]
    if layer.groups == -1 or before is None or after is None:
        return {}
    return {"groups": layer.groups * after // before}


def with_statistics(call: Call) -> list[np.ndarray]:
    """Label the layer Normalization, which knows the mean of each input channel."""
    if varying(call.x.array):
        return call.frozen(f"{call.operation.name!r} knows the mean of each channel")
    return [call.x.array]


def _own(layer: Any) -> list[Any]:
    return [v for v in layer.weights if len(v.shape) == 1]
