"""Estimates the size of layer outputs from the shapes in a model's graph.

Every output counts fully, although a backend may fuse operations or reuse memory.
Temporary memory of layers is not included.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.graph.calls import Trace, trace
from kerasmem.graph.layers import blocks, own_graph, weights
from kerasmem.graph.values import parameters
from kerasmem.types import Layer, Model, Tensor

_DTYPE = re.compile(r"(?:bfloat|float|uint|int|complex)(\d+)")


@dataclass(frozen=True)
class LayerActivations:
    """Outputs and weights of one layer.

    Args:
        name: Name of the layer, or of an operation such as `a + b`. For a model without
            a graph, the path of the layer.
        class_name: Name of the class.
        output_shape: Output shape of the first call, with the batch axis. None for a
            model without a graph.
        output_bytes: Bytes of all outputs of all calls, or None if unknown.
        calls: Number of calls per forward pass. 0 for a model without a graph.
        parameters: Number of parameters. Shared weights count once, and scales of int8
            weights do not count.
        weight_bytes: Bytes of the weights in memory.
    """

    name: str
    class_name: str
    output_shape: tuple[int | None, ...] | None
    output_bytes: int | None
    calls: int
    parameters: int
    weight_bytes: int


def layer_activations(model: Model, batch_size: int = 1) -> list[LayerActivations]:
    """Returns one record per layer, including the layers of nested models.

    A model without a graph has one record per layer with weights. Output sizes are then
    unknown.
    """
    calls_of_model = trace(model, batch_size)
    if calls_of_model is None:
        return _holders(model)
    outputs: dict[Any, list[tuple[Any, ...]]] = {}
    for call in calls_of_model.calls:
        outputs.setdefault(call.operation, []).append(call.outputs)
    for layer in blocks(model):
        outputs.setdefault(layer, [])
    counted_ids: set[int] = set()
    records: list[LayerActivations] = []
    for operation, calls in outputs.items():
        own = [w for w in getattr(operation, "weights", ()) if id(w) not in counted_ids]
        counted_ids.update(map(id, own))
        records.append(_record(operation, operation.name, own, calls))
    return records


def peak_activation_bytes(
    model: Model, batch_size: int = 1, shapes: Sequence[Sequence[int]] | None = None
) -> int | None:
    """Estimates the peak size of the layer outputs in one forward pass for inference.

    An output is alive from its call to its last use. Inputs of a call are alive during
    the call, and outputs of the model until the end.

    Returns None for a model without a graph, with axes of unknown length, or with
    another fixed batch size. `shapes` are input shapes with the batch axis.
    """
    graph = own_graph(model)
    own = [x.shape for x in graph.inputs] if graph and not shapes else shapes
    # Without the input sizes, no peak can be computed.
    if graph is None or any(None in shape[1:] for shape in own or ()):
        return None
    calls = trace(model, batch_size, shapes)
    return None if calls is None else peak_of(calls, sizes_of(calls))


def sizes_of(traced: Trace) -> dict[int, int | None]:
    """Returns the bytes of every tensor of a trace by `id`, or None if unknown."""
    return {id(t): _tensor_bytes(t) for call in traced.calls for t in call.outputs}


def peak_of(traced: Trace, sizes: Mapping[int, int | None]) -> int | None:
    """Returns the peak number of bytes, or None if a size is unknown."""
    known_sizes = {key: size for key, size in sizes.items() if size is not None}
    if len(known_sizes) < len(sizes):
        return None
    last_use = {id(t): n for n, call in enumerate(traced.calls) for t in call.inputs}
    last_use |= {id(tensor): len(traced.calls) for tensor in traced.outputs}
    return _peak(
        [list(map(id, call.outputs)) for call in traced.calls], known_sizes, last_use
    )


def _peak(
    outputs: list[list[int]], sizes: dict[int, int], last_use: dict[int, int]
) -> int:
    peak, live = 0, dict[int, int]()
    for step, tensors in enumerate(outputs):
        live.update({tensor: sizes[tensor] for tensor in tensors})
        peak = max(peak, sum(live.values()))
        live = {t: size for t, size in live.items() if last_use.get(t, step) > step}
    return peak


def _holders(model: Model) -> list[LayerActivations]:
    by_owner: dict[Any, list[Any]] = {}
    for weight in weights(model):
        by_owner.setdefault(weight.owner, []).append(weight.variable)
    return [_record(owner, owner.path, own, []) for owner, own in by_owner.items()]


def _record(
    layer: Layer, name: str, own: list[Any], calls: list[tuple[Any, ...]]
) -> LayerActivations:
    return LayerActivations(
        name=name,
        class_name=type(layer).__name__,
        output_shape=tuple(calls[0][0].shape) if calls and calls[0] else None,
        output_bytes=_sum(_tensor_bytes(t) for call in calls for t in call)
        if calls
        else None,
        calls=len(calls),
        parameters=sum(map(parameters, own)),
        weight_bytes=sum(_tensor_bytes(weight) or 0 for weight in own),
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    values = list(sizes)
    return None if None in values else sum(size or 0 for size in values)


def _tensor_bytes(tensor: Tensor) -> int | None:
    bits = _DTYPE.match(str(tensor.dtype))
    if None in tensor.shape or (bits is None and tensor.dtype != "bool"):
        return None
    # Keras stores types below 8 bits in whole bytes.
    return math.prod(tensor.shape) * max(8, int(bits[1]) if bits else 8) // 8
