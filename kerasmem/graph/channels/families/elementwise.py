"""Elementwise operations on one or several tensors."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.graph.channels.labelled_calls import Addition, ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import (
    CHANNEL,
    LabelledTensor,
    Labels,
    Shape,
    narrow,
    of_rank,
)
from kerasmem.graph.layer_table import entry_of

_POINTWISE = (
    "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_tanh "
    "leaky_relu linear log_sigmoid mish relu relu6 selu sigmoid silu "
    "soft_shrink softplus softsign sparse_plus sparse_sigmoid squareplus tanh "
    "tanh_shrink threshold"
)
POINTWISE = frozenset(_POINTWISE.split())
_OVER_CHANNELS = frozenset({"softmax", "log_softmax", "sparsemax"})


def passed(call: LabelledCall) -> list[np.ndarray]:
    """Labels an elementwise operation on one tensor."""
    return [call.x.array for _ in call.shapes]


def combined(call: LabelledCall) -> list[np.ndarray]:
    """Labels an elementwise operation on several tensors."""
    for constant in constants(call.args, call.kwargs):
        if np.prod(constant.shape) > 1:
            return call.frozen(
                f"{call.operation.name!r} combines it with a constant array"
            )
    return [meet(call.labels, call.inputs, call.rank)]


def merged(call: LabelledCall) -> list[np.ndarray]:
    """Labels a merging layer such as Add, which broadcasts from the first axis."""
    if len({len(x.shape) for x in call.inputs}) > 1:
        return call.frozen(f"{call.operation.name!r} merges tensors of different ranks")
    return combined(call)


def terms(call: LabelledCall, subset: ChannelSubset) -> list[Addition]:
    """Returns the successive additions of several tensors."""
    sum_, *others = (subset.shape(x) for x in call.inputs)
    additions = []
    for other in others:
        additions.append((sum_, other))
        sum_ = _broadcast(sum_, other)
    return additions


def _broadcast(first: Shape, second: Shape) -> Shape:
    rank = max(len(first), len(second))
    both = ((1,) * (rank - len(shape)) + shape for shape in (first, second))
    return tuple(b if a == 1 else a for a, b in zip(*both, strict=True))


def constants(args: Any, kwargs: Any) -> list[Any]:
    """Returns the arrays and variables among the arguments of a call."""
    values = keras.tree.flatten((args, kwargs))
    return [
        x for x in values if hasattr(x, "shape") and not isinstance(x, LabelledTensor)
    ]


def meet(labels: Labels, tensors: Sequence[LabelledTensor], rank: int) -> np.ndarray:
    """Unites labels of tensors that are broadcast together. Returns the output labels.

    A tensor with size 1 along all channel axes of the other tensors is not united. Its
    single entry applies to all channels and is kept.
    """
    pairs = [
        (of_rank(x.array, rank), (1,) * (rank - len(x.shape)) + x.shape)
        for x in tensors
    ]
    bound = [array for array, shape in pairs if not _stretched(array, shape, pairs)]
    bound = bound or [array for array, _ in pairs]
    labels.unite(*sorted(bound, key=lambda array: -array.size))
    return narrow(np.broadcast_arrays(*bound)[_largest(bound)])


def _largest(arrays: Sequence[np.ndarray]) -> int:
    return max(range(len(arrays)), key=lambda number: arrays[number].size)


def _stretched(
    array: np.ndarray,
    shape: tuple[int | None, ...],
    everyone: Sequence[tuple[np.ndarray, tuple[int | None, ...]]],
) -> bool:
    if array.size > 1:
        return False
    axes = [
        axis
        for axis, size in enumerate(shape)
        if any(other.shape[axis] > 1 for other, _ in everyone)
        or (size == 1 and any(wide[axis] != 1 for _, wide in everyone))
    ]
    return bool(axes) and all(shape[axis] == 1 for axis in axes)


def activated(
    labels: Labels, array: np.ndarray, activation: Any, name: str
) -> np.ndarray:
    """Returns the labels after the activation of a layer."""
    if activation is None or _pointwise(activation):
        return array
    function_name = getattr(activation, "__name__", "")
    if _is_keras(activation) and function_name in _OVER_CHANNELS:
        return labels.join(
            array, [-1], f"{function_name} of {name!r} combines all channels"
        )
    return labels.freeze(array, f"the activation of {name!r} is not supported")


def _pointwise(activation: Any) -> bool:
    if isinstance(activation, keras.layers.Layer):
        return entry_of(activation).channels == "elementwise"
    return _is_keras(activation) and activation.__name__ in POINTWISE


def _is_keras(function: Any) -> bool:
    own_function = getattr(keras.activations, getattr(function, "__name__", ""), None)
    return own_function is function


def activation_layer(call: LabelledCall) -> list[np.ndarray]:
    """Labels the layer Activation."""
    name = call.operation.name
    return [activated(call.labels, call.x.array, call.operation.activation, name)]


def slopes(call: LabelledCall) -> list[np.ndarray]:
    """Labels the layer PReLU, which has one slope per entry."""
    alpha = call.operation.alpha
    per_entry = call.x.array.reshape(call.x.array.shape[1:])
    broadcast_axes = [a for a, size in enumerate(alpha.shape) if size == 1]
    if any(per_entry.shape[axis] > 1 for axis in broadcast_axes):
        per_entry = call.labels.join(
            per_entry,
            broadcast_axes,
            f"the slopes of {call.operation.name!r} are shared",
        )
    call.labels.weigh(alpha, CHANNEL, per_entry)
    return [call.x.array]


def scaled_by_weight(call: LabelledCall) -> list[np.ndarray]:
    """Labels the LayerScale of ConvNeXt, with one weight per channel (last axis)."""
    vector = call.labels.only_along(call.x, -1)
    call.labels.weigh_axis(call.operation.gamma, CHANNEL, 0, vector)
    return [call.x.array]


def rescaled(call: LabelledCall) -> list[np.ndarray]:
    """Labels the layer Rescaling."""
    layer = call.operation
    if np.size(layer.scale) + np.size(layer.offset) > 2:
        return call.frozen(f"{layer.name!r} has one number per channel")
    return passed(call)
