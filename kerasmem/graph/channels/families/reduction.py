"""Operations over whole axes: pooling, sums, normalization, tensor products."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kerasmem.graph.channels.families.convolution import channel_axis
from kerasmem.graph.channels.families.elementwise import constants, meet
from kerasmem.graph.channels.labelled_calls import ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import CHANNEL, LabelledTensor, Labels, varying
from kerasmem.types import Layer


def spatial(call: LabelledCall) -> list[np.ndarray]:
    """Labels operations on the spatial axes, such as pooling and padding."""
    rank = len(call.x.shape)
    axis = channel_axis(call.operation, rank)
    return [call.labels.join(call.x.array, _others(rank, axis))]


def spatial_last(call: LabelledCall) -> list[np.ndarray]:
    """Labels operations on the middle axis: UpSampling1D and Cropping1D."""
    rank = len(call.x.shape)
    return [call.labels.join(call.x.array, _others(rank, rank - 1))]


def pooled(call: LabelledCall) -> list[np.ndarray]:
    """Labels global pooling."""
    rank = len(call.x.shape)
    axis = channel_axis(call.operation, rank)
    array = call.labels.join(call.x.array, _others(rank, axis))
    return [array if call.rank == rank else array.reshape(1, -1)]


def reduced(call: LabelledCall) -> list[np.ndarray]:
    """Labels reductions along some axes, such as sum, mean and maximum."""
    rank = len(call.x.shape)
    axis = call.operation.axis
    axes = _axes(axis, rank)
    why = f"{call.operation.name!r} reduces all channels"
    array = call.labels.join(call.x.array, axes, why)
    if call.rank != rank:
        array = array.reshape([s for a, s in enumerate(array.shape) if a not in axes])
    return [array]


def over_axis(call: LabelledCall) -> list[np.ndarray]:
    """Labels softmax and similar operations. Unites entries along their axes."""
    axes = _axes(call.operation.axis, len(call.x.shape))
    why = f"{call.operation.name!r} combines all channels"
    return [call.labels.join(call.x.array, axes, why)]


def matmul(call: LabelledCall) -> list[np.ndarray]:
    """Labels the product of two tensors with two or more axes."""
    if constants(call.args, call.kwargs) or len(call.inputs) < 2:
        return call.frozen(f"{call.operation.name!r} multiplies it by a constant")
    x, y = call.inputs
    if len(x.shape) < 2 or len(x.shape) != len(y.shape):
        return call.frozen(f"{call.operation.name!r} has operands of different ranks")
    batch = "abcdefgh"[: len(x.shape) - 2]
    return [contracted(call.labels, [x, y], [batch + "xz", batch + "zy"], batch + "xy")]


def einsum(call: LabelledCall) -> list[np.ndarray]:
    """Labels an einsum of tensors."""
    op = call.operation
    inputs, _, output = op.subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    plain = all(t.isalpha() and len(set(t)) == len(t) for t in [*terms, output])
    if constants(call.args, call.kwargs) or not plain or len(terms) > len(call.inputs):
        return call.frozen(f"{op.name!r} has the unsupported einsum {op.subscripts!r}")
    return [contracted(call.labels, call.inputs, terms, output)]


def contracted(
    labels: Labels, tensors: Sequence[LabelledTensor], terms: Sequence[str], output: str
) -> np.ndarray:
    """Labels a sum of products. Unites entries along summed axes."""
    operands = []
    for x, term in zip(tensors, terms, strict=True):
        sum_axes = [axis for axis, letter in enumerate(term) if letter not in output]
        array = labels.join(x.array, sum_axes, "is summed over in a product of tensors")
        sizes = dict(zip(term, x.shape, strict=True))
        letters = [letter for letter in term if letter in output]
        array = array.reshape([array.shape[term.index(letter)] for letter in letters])
        order = sorted(
            range(len(letters)), key=lambda axis: output.index(letters[axis])
        )
        array = array.transpose(order)
        letters_in_order = [letters[axis] for axis in order]
        inner = dict(zip(letters_in_order, array.shape, strict=True))
        array = array.reshape([inner.get(letter, 1) for letter in output])
        operands.append(
            LabelledTensor(array, tuple(sizes.get(letter, 1) for letter in output))
        )
    return meet(labels, operands, len(output))


def dotted(call: LabelledCall) -> list[np.ndarray]:
    """Labels the layer Dot."""
    layer = call.operation
    x, y = call.inputs
    axes = [layer.axes] * 2 if isinstance(layer.axes, int) else list(layer.axes)
    if layer.normalize:
        why = f"{layer.name!r} normalizes all of its channels together"
        return call.frozen(why)
    first, second = (a % len(t.shape) for a, t in zip(axes, (x, y), strict=True))
    left = "b" + "".join("cdef"[a] for a in range(len(x.shape) - 1))
    right = "b" + "".join("ghij"[a] for a in range(len(y.shape) - 1))
    right = right[:second] + left[first] + right[second + 1 :]
    output = "".join(c for c in left + right[1:] if c != left[first])
    if len(output) != call.rank:
        output += "z" * (call.rank - len(output))
    return [contracted(call.labels, [x, y], [left, right], output)]


def _axes(axis: Any, rank: int) -> list[int]:
    if axis is None:
        return list(range(rank))
    return [a % rank for a in ([axis] if isinstance(axis, int) else axis)]


def _others(rank: int, axis: int) -> list[int]:
    return [other for other in range(1, rank) if other != axis]


def per_channel(call: LabelledCall) -> list[np.ndarray]:
    """Labels BatchNormalization, with statistics, scale and offset per channel."""
    layer = call.operation
    vector = call.labels.only_along(call.x, layer.axis)
    for variable in _own(layer):
        call.labels.weigh_axis(variable, CHANNEL, 0, vector)
    return [call.x.array]


def over_axes(call: LabelledCall) -> list[np.ndarray]:
    """Labels LayerNormalization and similar layers. Unites entries along their axes."""
    axis = call.operation.axis
    axes = [axis] if isinstance(axis, int) else list(axis)
    why = f"{call.operation.name!r} normalizes all of its channels together"
    return [call.labels.join(call.x.array, axes, why)]


def over_groups(call: LabelledCall) -> list[np.ndarray]:
    """Labels GroupNormalization. Removes whole groups, so statistics do not change."""
    layer, labels = call.operation, call.labels
    vector = labels.only_along(call.x, layer.axis)
    groups = len(vector) if layer.groups == -1 else layer.groups
    why = f"{layer.name!r} normalizes all of its channels together"
    labels.join(vector.reshape(groups, -1), [1], why)
    for variable in _own(layer):
        labels.weigh_axis(variable, CHANNEL, 0, vector)
    return [call.x.array]


def group_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new number of groups."""
    layer = call.operation
    before = call.x.shape[layer.axis]
    after = subset.shape(call.x)[layer.axis]
    if layer.groups == -1 or before is None or after is None:
        return {}
    return {"groups": layer.groups * after // before}


def with_statistics(call: LabelledCall) -> list[np.ndarray]:
    """Labels the layer Normalization, which stores the mean of each input channel."""
    if varying(call.x.array):
        return call.frozen(f"{call.operation.name!r} stores the mean of each channel")
    return [call.x.array]


def _own(layer: Layer) -> list[Any]:
    return [v for v in layer.weights if len(v.shape) == 1]
