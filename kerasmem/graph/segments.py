"""A model's graph cut into segments, each of them a pure function while it trains.

Keras runs a graph node by node, and layers assign variables on the way. Here several
nodes become one function of tensors alone, so that a framework can be told to run it
in another way: the tensors that go in, their masks, and the variables as values; out
come tensors, masks, the losses that layers added, and the new values of variables. The
model stays what it is: only the call of this one object is another one in training.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.recompute import Function
from kerasmem.graph.inside import Opened, opened
from kerasmem.graph.nodes import nodes_in_order, own_graph
from kerasmem.graph.pure import Operator, PureRun, Segment, run_node

Recomputation = Callable[[Function], Function]
"""Returns a function of the same values that runs in another way."""


def cut(model: Any, starts: Sequence[int]) -> list[Segment]:
    """Return the segments of a model with a graph.

    Args:
        model: a Sequential or Functional model, or a layer that was opened for good.
        starts: numbers of the calls before which to cut, ascending, from 1.
    """
    graph = graph_of(model)
    nodes = nodes_in_order(graph)
    edges = [0, *starts, len(nodes)]
    last_use: dict[int, int] = {}
    for number, node in enumerate(nodes):
        last_use.update((id(x), number) for x in node.input_tensors)
    last_use.update((id(x), len(nodes)) for x in graph.outputs)
    return [
        _segment(nodes[start:end], last_use, end)
        for start, end in itertools.pairwise(edges)
    ]


def graph_of(model: Any) -> Any:
    """Return the graph of a model, or of a layer that was opened for good, or None."""
    known = opened(model)
    return known.graph if known else own_graph(model)


def _segment(nodes: Sequence[Any], last_use: dict[int, int], end: int) -> Segment:
    made = {id(y): y for node in nodes for y in node.outputs}
    taken = {id(x): x for node in nodes for x in node.input_tensors}
    return Segment(
        nodes=tuple(nodes),
        inputs=tuple(x for key, x in taken.items() if key not in made),
        outputs=tuple(y for key, y in made.items() if last_use.get(key, -1) >= end),
    )


def recompute(
    model: Any, segments: Sequence[tuple[Segment, Recomputation | None]]
) -> Callable[[], None]:
    """Run a model by segments in training; return the undo.

    A recomputed function gets the tensors of `Segment.inputs` first, in this order,
    then masks, then values of variables. In inference the model runs as ever; what it
    saves and its config are those of the model as it was.

    Args:
        model: a Sequential or Functional model, or a layer that was opened for good.
        segments: all of its segments in order, as `cut` gives them, each with how to
            run it; None for as ever.
    """
    known, graph = opened(model), graph_of(model)
    run = partial(_run, graph, segments)
    layer, call = graph, _graph_call(graph, run)
    if known is not None:
        layer, call = model, _layer_call(model, known, run)
    return backends.shadow(layer, "call", call)


def _graph_call(graph: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of a graph's `call` that runs it by segments."""

    def in_segments(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Private: there is no public place between a graph's call, which checks its
        # arguments, and the loop over its nodes.
        undo = backends.shadow(graph, "_run_through_graph", run)
        try:
            return original(*args, **kwargs)
        finally:
            undo()

    in_segments = backends.current().uncompiled(in_segments)

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("training"):
            return in_segments(original, *args, **kwargs)
        return original(*args, **kwargs)

    return call


def _layer_call(
    layer: Any, known: Opened, run: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a wrapper of a layer's `call` that runs its graph by segments."""
    run = backends.current().uncompiled(run)

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Private: a `call` that takes no `training` is not told of it.
        if not getattr(layer._get_call_context(), "training", None):
            return original(*args, **kwargs)
        return run(original, known.inputs(layer, args, kwargs), _in_training)

    return call


def _in_training(operation: Any) -> Callable[..., Any]:
    """Return how an operation is called; a second run does not know that it trains."""
    if not isinstance(operation, keras.layers.Layer):
        return operation

    def call(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **{"training": True, **kwargs})

    return call


def _run(
    graph: Any,
    segments: Sequence[tuple[Segment, Recomputation | None]],
    _original: Callable[..., Any],
    inputs: Any,
    operation_fn: Operator,
) -> Any:
    given = keras.tree.flatten(inputs)
    known = {id(x): value for x, value in zip(graph.inputs, given, strict=True)}
    for segment, recomputation in segments:
        if recomputation is None:
            for node in segment.nodes:
                run_node(node, known, operation_fn)
        else:
            run = PureRun(segment, operation_fn)
            known.update(run(known, recomputation))
    outputs = [known[id(y)] for y in graph.outputs]
    return keras.tree.pack_sequence_as(graph._outputs_struct, outputs)
