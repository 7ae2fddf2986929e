"""Bytes of layer outputs, from the shapes in a model's graph. Nothing is run.

These are estimates: an output counts in full although a backend may fuse it away or
write it over its input, and the scratch space of a layer does not count at all.
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
    """What one layer puts out and holds.

    Args:
        name: name of the layer, or of an operation such as `a + b`; its path in a
            model without a graph.
        class_name: its class.
        output_shape: shape of its output with the batch axis, of its first call if it
            is shared; None if the model has no graph.
        output_bytes: bytes of all its outputs, over all its calls; None if unknown.
        calls: how often one forward pass calls it, 0 if the model has no graph.
        parameters: number of its weights' entries, each weight counted at one layer;
            the scales of int8 weights are none.
        weight_bytes: bytes of those weights in RAM.
    """

    name: str
    class_name: str
    output_shape: tuple[int | None, ...] | None
    output_bytes: int | None
    calls: int
    parameters: int
    weight_bytes: int


def layer_activations(model: Model, batch_size: int = 1) -> list[LayerActivations]:
    """Return one record per layer, nested models opened, shared layers once.

    Of a model without a graph there is one record per layer that holds weights, under
    its path; what they put out is unknown.

    Args:
        model: a built `keras.Model`.
        batch_size: samples in the batch that goes through, from 1.
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
    """Return an estimate of the most bytes of layer outputs alive at once.

    One forward pass for inference: an output is alive from the call that makes it,
    during which the call's inputs are alive too, until its last use. The batch that
    goes in counts until its last use, the model's outputs to the end.

    Args:
        model: a built `keras.Model`.
        batch_size: samples in the batch that goes through, from 1.
        shapes: of its inputs with the batch axis, for a model that leaves lengths
            open; None for the model's own.

    Returns:
        The bytes, or None for a model without a graph, with axes of unknown length, or
        that takes batches of another size only.
    """
    graph = own_graph(model)
    own = [x.shape for x in graph.inputs] if graph and not shapes else shapes
    # The inputs are among the tensors: without their sizes there is nothing to trace.
    if graph is None or any(None in shape[1:] for shape in own or ()):
        return None
    calls = trace(model, batch_size, shapes)
    return None if calls is None else peak_of(calls, sizes_of(calls))


def sizes_of(traced: Trace) -> dict[int, int | None]:
    """Return the bytes of every tensor of a trace by its id, None if unknown."""
    return {id(t): _tensor_bytes(t) for call in traced.calls for t in call.outputs}


def peak_of(traced: Trace, sizes: Mapping[int, int | None]) -> int | None:
    """Return the most bytes alive at once, as `peak_activation_bytes` counts them.

    Args:
        traced: the calls of a forward pass.
        sizes: the bytes of every tensor by its id.

    Returns:
        The bytes, or None if one of the sizes is.
    """
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
    # Keras keeps what is narrower than a byte in whole bytes.
    return math.prod(tensor.shape) * max(8, int(bits[1]) if bits else 8) // 8
