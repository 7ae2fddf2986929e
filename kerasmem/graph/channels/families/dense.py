"""Matrix products with a weight: Dense, EinsumDense, Embedding."""

from typing import Any

import numpy as np

from kerasmem.graph.channels.families.elementwise import activated
from kerasmem.graph.channels.labelled_calls import Addition, ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import (
    CHANNEL,
    IN,
    OUT,
    LabelledTensor,
    Labels,
    axis_of,
    varying,
)
from kerasmem.graph.kernels import einsum_parts
from kerasmem.types import Layer


def dense(call: LabelledCall) -> list[np.ndarray]:
    """Labels a Dense layer, along the last axis of a tensor of any rank."""
    layer, labels = call.operation, call.labels
    inputs = labels.only_along(call.x, -1)
    labels.weigh_axis(layer.kernel, IN, 0, inputs)
    outputs = labels.from_weight(layer.kernel, layer.units)
    labels.weigh_axis(layer.kernel, OUT, 1, outputs)
    if layer.use_bias:
        labels.weigh_axis(layer.bias, CHANNEL, 0, outputs)
    array = axis_of(outputs, -1, call.rank)
    return [activated(labels, array, layer.activation, layer.name)]


def embedding(call: LabelledCall) -> list[np.ndarray]:
    """Labels an embedding. Outputs have the channels of the table.

    Freezes channels used as indices, because each index selects a row of the table.
    """
    layer, labels = call.operation, call.labels
    labels.freeze(call.x.array, f"is an index into the table of {layer.name!r}")
    outputs = labels.from_weight(layer.embeddings, layer.output_dim)
    labels.weigh_axis(layer.embeddings, OUT, 1, outputs)
    return [axis_of(outputs, -1, call.rank)]


def einsum_dense(call: LabelledCall) -> list[np.ndarray]:
    """Labels an EinsumDense by the letters of its equation."""
    layer = call.operation
    letters = einsum_letters(layer.equation)
    if letters is None:
        return call.frozen(
            f"{layer.name!r} has the unsupported equation {layer.equation!r}"
        )
    array = projected(call.labels, layer, call.x, letters)
    return [activated(call.labels, array, layer.activation, layer.name)]


def einsum_dense_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new output shape."""
    layer = call.operation
    letters = einsum_letters(layer.equation)
    if letters is None:
        return {}
    _, kernel, output = letters
    sizes = dict(zip(kernel, subset.weight_shape(layer.kernel), strict=True))
    shape = [None, *_as_tuple(layer.partial_output_shape)]
    old = dict(zip(kernel, layer.kernel.shape, strict=True))
    new = [
        size if size is None or old.get(letter) != size else sizes[letter]
        for letter, size in zip(output, shape, strict=True)
    ]
    return {"output_shape": tuple(new[1:])}


def einsum_biased(call: LabelledCall, subset: ChannelSubset) -> list[Addition]:
    """Returns the addition of the bias of an EinsumDense."""
    bias = call.operation.bias
    if bias is None:
        return []
    return [(subset.shape(call.outputs[0]), subset.weight_shape(bias))]


def einsum_letters(equation: str) -> tuple[str, str, str] | None:
    """Returns the letters of input, kernel and output, or None if not supported.

    Example:
        >>> einsum_letters("...d,dh->...h") is None, einsum_letters("ab, bc -> ac")
        (True, ('ab', 'bc', 'ac'))
    """
    inputs, kernel, output = einsum_parts(equation)
    if not (inputs.isalpha() and kernel.isalpha() and output.isalpha()):
        return None
    has_repeats = any(len(set(part)) < len(part) for part in (inputs, kernel, output))
    letters_of_one = set(inputs) - set(kernel) - set(output) | set(kernel) - set(
        inputs + output
    )
    return None if has_repeats or letters_of_one else (inputs, kernel, output)


def projected(
    labels: Labels, layer: Layer, x: LabelledTensor, letters: tuple[str, str, str]
) -> np.ndarray:
    """Labels an EinsumDense and returns its output labels.

    A kernel letter is an input (not in the output), an output (not in the input) or a
    batch axis (in both).
    """
    inputs, kernel, output = letters
    shape = dict(zip(kernel, layer.kernel.shape, strict=True))
    common = [a for a, c in enumerate(inputs) if c in kernel]
    others = [a for a, c in enumerate(inputs) if c not in kernel]
    common_labels = labels.join(x.array, others)
    common_labels = common_labels.reshape([common_labels.shape[a] for a in common])
    order = [inputs[a] for a in common]
    # At full length, because all calls of the kernel keep the same channels.
    common_labels = np.broadcast_to(common_labels, [shape[c] for c in order])
    kernel_inputs = _placed(common_labels, order, kernel)
    labels.weigh(layer.kernel, IN, kernel_inputs)
    new = [c for c in output if c in kernel and c not in inputs]
    outputs = labels.from_weight(layer.kernel, *(shape[c] for c in new))
    labels.weigh(layer.kernel, OUT, _placed(outputs, new, kernel))
    array = _placed(outputs, new, output)
    if layer.bias is not None:
        _weigh_bias(labels, layer.bias, array)
    return array


def _weigh_bias(labels: Labels, bias: Any, array: np.ndarray) -> None:
    sizes = (1,) * (array.ndim - len(bias.shape)) + tuple(bias.shape)
    broadcast_axes = [
        a for a, size in enumerate(sizes) if size == 1 and array.shape[a] > 1
    ]
    if len(broadcast_axes) < len(varying(array)):
        one = labels.join(array, broadcast_axes)
        labels.weigh(bias, CHANNEL, one.reshape(one.shape[-len(bias.shape) :]))


def _placed(array: np.ndarray, letters: list[str], wanted: str) -> np.ndarray:
    inside = [c for c in letters if c in wanted]
    order = sorted(range(len(letters)), key=lambda a: wanted.index(letters[a]))
    sizes = {c: array.shape[a] for a, c in enumerate(letters)}
    shape = [sizes[c] if c in inside else 1 for c in wanted]
    return array.transpose(order).reshape(shape)


def _as_tuple(shape: Any) -> tuple[Any, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)
