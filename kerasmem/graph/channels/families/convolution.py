"""Plain, grouped, depthwise, separable and transposed convolutions, 1D to 3D."""

from typing import Any

import numpy as np

from kerasmem.graph.channels.families.elementwise import activated
from kerasmem.graph.channels.labelled_calls import Addition, ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import CHANNEL, IN, OUT, axis_of
from kerasmem.types import Layer


def channel_axis(layer: Layer, rank: int) -> int:
    """Returns the channel axis of a layer's input."""
    return 1 if layer.data_format == "channels_first" else rank - 1


def convolved(call: LabelledCall) -> list[np.ndarray]:
    """Labels a convolution. One group per input channel is a depthwise convolution."""
    layer, labels = call.operation, call.labels
    rank = len(layer.kernel.shape)
    inputs = labels.only_along(call.x, channel_axis(layer, rank))
    if layer.groups == 1:
        labels.weigh_axis(layer.kernel, IN, rank - 2, inputs)
        outputs = labels.from_weight(layer.kernel, layer.filters)
        labels.weigh_axis(layer.kernel, OUT, rank - 1, outputs)
    elif len(inputs) == layer.groups:
        outputs = np.repeat(inputs, layer.filters // layer.groups)
        labels.weigh_axis(layer.kernel, CHANNEL, rank - 1, outputs)
    else:
        # Groups stay equal if each group loses the same indices.
        why = f"{layer.name!r} needs groups of equal size"
        inputs = labels.join(inputs.reshape(layer.groups, -1), [0], why).ravel()
        labels.weigh_axis(layer.kernel, IN, rank - 2, inputs)
        outputs = labels.from_weight(
            layer.kernel, layer.groups, layer.filters // layer.groups
        )
        labels.join(outputs, [0], why)
        outputs = outputs.ravel()
        labels.weigh_axis(layer.kernel, OUT, rank - 1, outputs)
    return [_finished(call, outputs)]


def convolution_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new number of filters and groups."""
    layer = call.operation
    filters = subset.weight_shape(layer.kernel)[-1]
    groups = layer.groups
    if groups > 1 and layer.kernel.shape[-2] == 1:
        groups = filters // (layer.filters // groups)
    return {"filters": filters, "groups": groups}


def transposed(call: LabelledCall) -> list[np.ndarray]:
    """Labels a transposed convolution. The last kernel axes are outputs, inputs."""
    layer, labels = call.operation, call.labels
    rank = len(layer.kernel.shape)
    inputs = labels.only_along(call.x, channel_axis(layer, rank))
    labels.weigh_axis(layer.kernel, IN, rank - 1, inputs)
    outputs = labels.from_weight(layer.kernel, layer.filters)
    labels.weigh_axis(layer.kernel, OUT, rank - 2, outputs)
    return [_finished(call, outputs)]


def depthwise(call: LabelledCall) -> list[np.ndarray]:
    """Labels a depthwise convolution. The last kernel axes are channels, multiplier."""
    layer, labels = call.operation, call.labels
    rank = len(layer.kernel.shape)
    inputs = labels.only_along(call.x, channel_axis(layer, rank))
    labels.weigh_axis(layer.kernel, CHANNEL, rank - 2, inputs)
    return [_finished(call, np.repeat(inputs, layer.depth_multiplier))]


def separable(call: LabelledCall) -> list[np.ndarray]:
    """Labels a depthwise convolution followed by a pointwise convolution."""
    layer, labels = call.operation, call.labels
    rank = len(layer.depthwise_kernel.shape)
    inputs = labels.only_along(call.x, channel_axis(layer, rank))
    labels.weigh_axis(layer.depthwise_kernel, CHANNEL, rank - 2, inputs)
    between = np.repeat(inputs, layer.depth_multiplier)
    labels.weigh_axis(layer.pointwise_kernel, IN, rank - 2, between)
    outputs = labels.from_weight(layer.pointwise_kernel, layer.filters)
    labels.weigh_axis(layer.pointwise_kernel, OUT, rank - 1, outputs)
    return [_finished(call, outputs)]


def biased(call: LabelledCall, subset: ChannelSubset) -> list[Addition]:
    """Returns the addition of a bias, which is always correct along the last axis."""
    layer = call.operation
    if not layer.use_bias or layer.data_format != "channels_first":
        return []
    shape = subset.shape(call.outputs[0])
    return [(shape, (1, shape[1], *[1] * layer.rank))]


def _finished(call: LabelledCall, channels: np.ndarray) -> np.ndarray:
    layer = call.operation
    if layer.use_bias:
        call.labels.weigh_axis(layer.bias, CHANNEL, 0, channels)
    array = axis_of(channels, channel_axis(layer, call.rank), call.rank)
    return activated(call.labels, array, layer.activation, layer.name)
