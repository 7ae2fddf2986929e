"""The part of a model to cut: the model, a nested model or an opened layer."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.inside import calls_forgotten, open_for_good
from kerasmem.graph.layers import (
    as_it_was,
    has_graph,
    nodes_in_order,
    own_graph,
    sublayers,
)
from kerasmem.graph.segments import graph_of
from kerasmem.memory.estimate.inputs import like_inputs
from kerasmem.memory.estimate.request import Input, Request
from kerasmem.memory.plan.steps import Path, RecordedStep, recorded
from kerasmem.types import Model, Node


def main_part(model: Model, path: Sequence[int]) -> Any:
    """Return the nested model or opened layer at a path."""
    for number in path:
        node = nodes_in_order(graph_of(model))[number]
        model = node.operation
        if own_graph(model) is None:
            open_for_good(node)
    return model


def with_graph(model: Model, inputs: Sequence[Input]) -> Any:
    """Return the model, or a Functional model that only calls a subclassed model.

    `inputs` are the inputs of a subclassed model.

    Raises:
        ModelError: If the calls inside of a subclassed model cannot be recorded.
    """
    if own_graph(model) is not None:
        return model
    symbols = [keras.Input(x.shape[1:], dtype=x.dtype) for x in inputs]
    # A user's `call` may raise anything on symbols.
    with suppress(Exception), calls_forgotten(model), as_it_was(model):
        outer = keras.Model(symbols, model(like_inputs(model, symbols)))
        if open_for_good(nodes_in_order(outer)[0]) is not None:
            return outer
    inner = [x.name for x in sublayers(model) if x is not model and has_graph(x)]
    if inner:
        next_step = (
            f"rematerialize its parts {inner}, which have a graph, and replace them "
            "with the results before the first call"
        )
    else:
        next_step = "build it from keras.Input and calls of its layers"
    raise ModelError(
        "A memory plan needs the calls of the layers. Expected: a Sequential or "
        "Functional model, or a subclassed model whose `call` uses only layers and "
        f"keras.ops. Received: model={model.name!r}, of class {type(model).__name__}. "
        f"Next: {next_step}."
    )


def recorded_step(request: Request) -> RecordedStep:
    """Record a step of the request's model, with the main part as the part to cut.

    Raises:
        ModelError: If the model has no graph.
    """
    model = with_graph(request.model, request.inputs)
    request = replace(request, model=model, compiled=request.model)
    path: Path = ()
    while True:
        graph = graph_of(main_part(request.model, path))
        step = recorded(request, path, graph)
        inner = _main_call(step)
        if inner is None:
            return step
        path = (*path, inner)


def _main_call(step: RecordedStep) -> int | None:
    """Return the call that saves more than all others together, if it can be cut.

    The call is a nested model or a layer of layers, such as an encoder with all blocks.
    """
    total = sum(call.kept_bytes for call in step.calls)
    operations = [node.operation for node in step.nodes]
    pairs = zip(step.nodes, step.calls, strict=True)
    for number, (node, call) in enumerate(pairs):
        once = operations.count(node.operation) == 1
        if once and 2 * call.kept_bytes > total and _can_be_cut(node):
            return number
    return None


def _can_be_cut(node: Node) -> bool:
    layer = node.operation
    if has_graph(layer):
        return True
    if not isinstance(layer, keras.layers.Layer) or not sublayers(layer)[1:]:
        return False
    graph = None if type(layer).__module__.startswith("keras.") else open_for_good(node)
    return graph is not None and len(nodes_in_order(graph)) > 1
