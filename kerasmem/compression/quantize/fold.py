"""Batch normalization folding into the layers before it.

In inference, BatchNormalization scales and shifts each channel. The kernel and bias of
the layer before it can do the same.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from kerasmem.compression.account import account
from kerasmem.compression.quantize.kernels import (
    Affine,
    affine_of,
    factors,
    has_channels,
    is_separable,
    is_sound,
    output_kernel,
    per_output,
    scaled_and_shifted,
)
from kerasmem.graph.clone import compile_as
from kerasmem.graph.layer_table import kind
from kerasmem.graph.layers import (
    Weight,
    is_trained,
    listed_graph,
    nodes_in_order,
    readers,
    weights,
)
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Layer, Model, Node


@dataclass(frozen=True, eq=False)
class Taker:
    """A layer with the BatchNormalizations in `norms` folded into it.

    `affine` contains the folded kernel and bias, in the dtype of the weights.
    """

    layer: Any
    affine: Affine
    norms: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class FoldPlan:
    """Plan of a folding.

    Args:
        takers: Layers that absorb a BatchNormalization, by their id.
        gone: Ids of the calls to remove.
        reasons: Reason why a BatchNormalization stays, by its id.
    """

    takers: dict[int, Taker] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)


def fold_plan(model: Model) -> FoldPlan:
    """Return the folding plan of a model with a graph, including nested models."""
    plan = FoldPlan()
    graphs: dict[int, CallGraph] = {}
    _gather(listed_graph(model), graphs, trained=False)
    calls = Counter(id(node.operation) for g in graphs.values() for node in g.nodes)
    shared_weights = readers(model)
    for graph in graphs.values():
        graph.tied = shared_weights
        before: dict[int, Any] = {}
        for node in graph.nodes:
            if has_channels(node.operation):
                before[id(node.outputs[0])] = node.operation
            elif isinstance(node.operation, keras.layers.BatchNormalization):
                _decide(plan, graph, node, before, calls)
    return plan


@dataclass(eq=False)
class CallGraph:
    """The calls of one graph.

    Args:
        nodes: Calls in order.
        uses: Number of reads of each tensor, by its id.
        trained: Whether the graph is called with `training=True`.
        tied: Name of another layer that reads a weight, by the id of the weight.
    """

    nodes: list[Any]
    uses: Counter[int]
    trained: bool
    tied: dict[int, str] = field(default_factory=dict)


def _gather(graph: Any, graphs: dict[int, CallGraph], *, trained: bool) -> None:
    if id(graph) in graphs:
        graphs[id(graph)].trained |= trained
    else:
        nodes = nodes_in_order(graph)
        uses = Counter(id(t) for node in nodes for t in node.arguments.keras_tensors)
        uses.update(map(id, graph.outputs))
        graphs[id(graph)] = CallGraph(nodes, uses, trained)
    for node in graphs[id(graph)].nodes:
        inner = listed_graph(node.operation)
        if inner is not None:
            _gather(inner, graphs, trained=trained or is_trained(node))


def _decide(
    plan: FoldPlan,
    graph: CallGraph,
    node: Node,
    before: dict[int, Any],
    calls: Counter[int],
) -> None:
    """Fold one call, or record the reason why not."""
    norm, norm_input = node.operation, node.arguments.keras_tensors[0]
    layer = before.get(id(norm_input))
    reason = next(_unfoldable_reasons(graph, node, layer, calls), None)
    taker = None if reason else _with_norm(plan.takers.get(id(layer)), layer, node)
    if taker is None:
        plan.reasons[id(norm)] = reason or "would make the weights before it too large"
    else:
        plan.takers[id(layer)] = taker
        plan.gone.add(id(node))
        before[id(node.outputs[0])] = layer


def _with_norm(now: Taker | None, layer: Layer, node: Node) -> Taker | None:
    norm, rank = node.operation, len(node.outputs[0].shape)
    before = affine_of(layer) if now is None else now.affine
    place = (norm.axis % rank, rank)
    affine = _in_dtype_of(
        layer, scaled_and_shifted(layer, before, factors(norm), place)
    )
    norms = () if now is None else now.norms
    return None if affine is None else Taker(layer, affine, (*norms, norm))


def _unfoldable_reasons(
    graph: CallGraph, node: Node, layer: Layer, calls: Counter[int]
) -> Iterator[str]:
    norm = node.operation
    if kind(norm) != "layers.BatchNormalization":
        yield f"is of the custom class {type(norm).__name__}"
    if layer is None:
        yield "does not come right after a layer with a kernel"
        return
    if calls[id(norm)] > 1:
        yield "is called in several places"
    yield from _unfoldable_reasons_before(graph, node, layer, calls)
    if norm.trainable and (graph.trained or is_trained(node)):
        yield "is called with training=True"
    if not is_sound(norm):
        yield "has statistics that are not finite, or a variance that is negative"


def _unfoldable_reasons_before(
    graph: CallGraph, node: Node, layer: Layer, calls: Counter[int]
) -> Iterator[str]:
    norm_input, axis = node.arguments.keras_tensors[0], node.operation.axis
    rank = len(norm_input.shape)
    if calls[id(layer)] > 1:
        yield f"comes after {layer.name!r}, which is called in several places"
    reader = next(filter(None, (graph.tied.get(id(w)) for w in layer.weights)), None)
    if reader is not None:
        yield f"comes after {layer.name!r}, whose weights {reader} reads too"
    if graph.uses[id(norm_input)] > 1:
        yield f"is not the only reader of the output of {layer.name!r}"
    if layer.activation not in (None, keras.activations.linear):
        yield f"comes after {layer.name!r}, which has an activation"
    if per_output(layer, np.ones(norm_input.shape[axis]), axis % rank, rank) is None:
        yield f"is along another axis than the channels of {layer.name!r}"


def _in_dtype_of(layer: Layer, affine: Affine) -> Affine | None:
    dtype = np.dtype(keras.backend.standardize_dtype(output_kernel(layer).dtype))
    with np.errstate(over="ignore"):
        kernel, bias = affine.kernel.astype(dtype), affine.bias.astype(dtype)
    good = all(np.isfinite(part.astype(np.float64)).all() for part in (kernel, bias))
    return Affine(kernel, bias, affine.bias_axes) if good else None


NAME = "fold_batch_norm"


def fold_batch_norm(model: Model) -> tuple[Any, list[WeightChange]]:
    """Return a new model with BatchNormalization folded, and its weight changes.

    Returns `model` itself if nothing can be folded. The new model computes the same
    outputs in inference and is compiled with a new optimizer. Each new bias adds a
    change.
    """
    plan = FoldPlan() if listed_graph(model) is None else fold_plan(model)
    if not plan.takers:
        return model, [_change(weight, plan) for weight in weights(model)]
    rebuild = Rebuild(_Folded(plan))
    folded_model = rebuild.run(model)
    compile_as(folded_model, model)
    changes = [_change(weight, plan) for weight in weights(model)]
    return folded_model, changes + _new_biases(folded_model, rebuild, plan)


class _Folded(Rewrite):
    def __init__(self, plan: FoldPlan) -> None:
        self._plan = plan

    def goes(self, node: Node) -> bool:
        return id(node) in self._plan.gone

    def config(self, node: Node) -> dict[str, Any] | None:
        taker = self._plan.takers.get(id(node.operation))
        if taker is None:
            return None
        if taker.affine.bias_axes is not None:
            return {"bias_axes": taker.affine.bias_axes}
        return {"use_bias": True}

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        taker = self._plan.takers.get(id(old))
        if taker is None:
            yield from super().values(old, new)
            return
        yield output_kernel(new), taker.affine.kernel
        yield new.bias, taker.affine.bias
        if is_separable(old):
            yield new.depthwise_kernel, to_numpy(old.depthwise_kernel)


def _change(weight: Weight, plan: FoldPlan) -> WeightChange:
    by_norm = {id(n): t.layer for t in plan.takers.values() for n in t.norms}
    taker, into = plan.takers.get(id(weight.owner)), by_norm.get(id(weight.owner))
    if into is not None:
        detail = f"folded into {into.name!r}"
        return account(weight, NAME, detail, changed=True, after_bytes=0)
    if taker is not None and weight.variable.name != "depthwise_kernel":
        names = ", ".join(repr(norm.name) for norm in taker.norms)
        return account(weight, NAME, f"absorbs {names}", changed=True)
    return account(weight, NAME, _why_not(weight, plan), changed=False)


def _why_not(weight: Weight, plan: FoldPlan) -> str:
    if not isinstance(weight.owner, keras.layers.BatchNormalization):
        return "has no neighboring BatchNormalization to fold"
    reason = plan.reasons.get(id(weight.owner))
    return reason or f"is inside {weight.block.name!r}, which has no graph"


def _new_biases(folded: Any, rebuild: Rebuild, plan: FoldPlan) -> list[WeightChange]:
    paths = {id(weight.variable): weight.path for weight in weights(folded)}
    return [
        WeightChange(
            layer=new.name,
            weight=paths[id(new.bias)],
            technique=NAME,
            changed=True,
            detail="created",
            before_bytes=0,
            after_bytes=nbytes(new.bias),
        )
        for old, new in rebuild.pairs
        if id(old) in plan.takers and old.bias is None
    ]
