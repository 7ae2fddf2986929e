"""Attention layers, with removable heads and head dimensions."""

import math
from typing import Any

import numpy as np

from kerasmem.graph.channels.families.reduction import contracted
from kerasmem.graph.channels.labelled_calls import Addition, ChannelSubset, LabelledCall
from kerasmem.graph.channels.labels import (
    CHANNEL,
    IN,
    OUT,
    LabelledTensor,
    Labels,
    axis_of,
)
from kerasmem.graph.layers import sublayers
from kerasmem.types import Layer


def multi_head(call: LabelledCall) -> list[np.ndarray]:
    """Labels MultiHeadAttention."""
    parts = _parts(call.operation)
    heads, dims = parts["query"].kernel.shape[1:]
    return _attended(call, parts, (heads, heads), dims)


def grouped_query(call: LabelledCall) -> list[np.ndarray]:
    """Labels GroupedQueryAttention. A key head is removed with all its query heads."""
    parts = _parts(call.operation)
    heads, dims = parts["query"].kernel.shape[1:]
    key_heads = parts["key"].kernel.shape[1]
    output = parts["attention_output"].kernel
    output_labels = call.labels.from_weight(output, output.shape[-1])
    # Keras requires that output, query and value have the same number of channels.
    query, value, _ = _arguments(call)
    for other in (output_labels, call.labels.only_along(value, -1)):
        call.labels.unite(other, call.labels.only_along(query, -1))
    return _attended(call, parts, (heads, key_heads), dims)


def _attended(
    call: LabelledCall,
    parts: dict[str, Any],
    heads: tuple[int, int],
    dims: int,
) -> list[np.ndarray]:
    layer, labels = call.operation, call.labels
    query, value, key = _arguments(call)
    output = parts["attention_output"]
    rank = len(query.shape)
    if rank != 3 or "gate" in parts or len(output.kernel.shape) != 3:
        return call.frozen(f"{layer.name!r} is an unsupported form of attention")
    of_keys = labels.from_weight(parts["key"].kernel, heads[1])
    of_heads = np.repeat(of_keys, heads[0] // heads[1])
    key_dims = labels.from_weight(parts["query"].kernel, dims)
    size = parts["value"].kernel.shape[2]
    # Fused attention requires equal dimensions of keys and values.
    value_dims = (
        key_dims if size == dims else labels.from_weight(parts["value"].kernel, size)
    )
    _project(labels, parts["query"], query, (of_heads, key_dims), silenced=True)
    _project(labels, parts["key"], key, (of_keys, key_dims))
    _project(labels, parts["value"], value, (of_keys, value_dims))
    labels.weigh_axis(output.kernel, IN, 0, of_heads)
    labels.weigh_axis(output.kernel, IN, 1, value_dims)
    output_labels = labels.from_weight(output.kernel, output.kernel.shape[2])
    labels.weigh_axis(output.kernel, OUT, 2, output_labels)
    if output.bias is not None:
        labels.weigh_axis(output.bias, CHANNEL, 0, output_labels)
    return [axis_of(output_labels, -1, rank), axis_of(of_heads, 1, 4)][
        : len(call.shapes)
    ]


def biased_heads(call: LabelledCall, subset: ChannelSubset) -> list[Addition]:
    """Returns the additions of the biases of queries, values and keys."""
    parts = _parts(call.operation)
    additions = []
    for name, x in zip(("query", "value", "key"), _arguments(call), strict=True):
        kernel, bias = parts[name].kernel, parts[name].bias
        if bias is not None:
            shape = (*x.shape[:-1], *subset.weight_shape(kernel)[1:])
            additions.append((shape, subset.weight_shape(bias)))
    return additions


def _project(
    labels: Labels,
    dense: Any,
    x: LabelledTensor,
    channels: tuple[np.ndarray, np.ndarray],
    *,
    silenced: bool = False,
) -> None:
    labels.weigh_axis(dense.kernel, IN, 0, labels.only_along(x, -1))
    for axis, vector in enumerate(channels):
        # A dimension without a query has no effect on the scores.
        quiet = silenced and axis == 1
        labels.weigh_axis(dense.kernel, OUT, axis + 1, vector, silenced=quiet)
        if dense.bias is not None:
            labels.weigh_axis(dense.bias, CHANNEL, axis, vector, silenced=quiet)


def multi_head_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new numbers of heads and dimensions."""
    parts = _parts(call.operation)
    _, heads, dims = subset.weight_shape(parts["query"].kernel)
    config: dict[str, Any] = {
        "num_heads": heads,
        "key_dim": dims,
        "value_dim": subset.weight_shape(parts["value"].kernel)[2],
    }
    kernel = parts["attention_output"].kernel
    if len(kernel.shape) == 3:
        channels = subset.weight_shape(kernel)[2]
        query = subset.shape(_arguments(call)[0])[-1]
        if channels != query or call.operation.get_config()["output_shape"]:
            config["output_shape"] = (channels,)
    return config


def grouped_query_config(call: LabelledCall, subset: ChannelSubset) -> dict[str, Any]:
    """Returns the new numbers of heads and dimensions."""
    parts = _parts(call.operation)
    _, heads, dims = subset.weight_shape(parts["query"].kernel)
    key_heads = subset.weight_shape(parts["key"].kernel)[1]
    return {
        "num_query_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": dims,
    }


def rescaled_query(call: LabelledCall, subset: ChannelSubset) -> dict[int, float]:
    """Returns a factor for the query's weights that preserves the attention scores.

    Keras divides scores by the square root of the number of dimensions.
    """
    query = _parts(call.operation)["query"]
    factor = math.sqrt(subset.weight_shape(query.kernel)[2] / query.kernel.shape[2])
    return {id(variable): factor for variable in query.weights}


def attention(call: LabelledCall) -> list[np.ndarray]:
    """Labels the layer Attention, which has no weights per channel."""
    query, value, *key = call.inputs
    if len(call.shapes) > 1 or call.operation.score_mode != "dot":
        return call.frozen(f"{call.operation.name!r} has an unsupported form")
    keys = key[0] if key else value
    scores = contracted(call.labels, [query, keys], ["bqc", "bkc"], "bqk")
    weights = LabelledTensor(scores, (query.shape[0], query.shape[1], keys.shape[1]))
    return [contracted(call.labels, [weights, value], ["bqk", "bkv"], "bqv")]


def _parts(layer: Layer) -> dict[str, Any]:
    return {inner.name: inner for inner in sublayers(layer)}


def _arguments(
    call: LabelledCall,
) -> tuple[LabelledTensor, LabelledTensor, LabelledTensor]:
    names = ("query", "value", "key")
    by_name = dict(zip(names, call.args, strict=False)) | call.kwargs
    query, value, key = (by_name.get(name) for name in names)
    key = value if key is None else key
    return query, value, key  # pyright: ignore[reportReturnType]
