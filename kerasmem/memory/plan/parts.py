"""The part of a model to cut: the model, a nested model or an opened layer."""

from collections.abc import Sequence
from contextlib import suppress
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
from kerasmem.memory.estimate.request import Input
from kerasmem.types import Model

Path = tuple[int, ...]
"""Indices of the calls that lead to a nested model or layer, outermost first."""


def parts_at(model: Model, path: Sequence[int]) -> list[Any]:
    """Return the model and the nested models and opened layers along a path."""
    parts = [model]
    for number in path:
        node = nodes_in_order(graph_of(parts[-1]))[number]
        if own_graph(node.operation) is None:
            open_for_good(node)
        parts.append(node.operation)
    return parts


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
