"""The part of a model that is cut: where most of its activations are."""

from collections.abc import Sequence
from typing import Any

from kerasmem.errors import ModelError
from kerasmem.graph.inside import open_for_good
from kerasmem.graph.layers import has_graph, sublayers
from kerasmem.graph.nodes import nodes_in_order, own_graph
from kerasmem.graph.segments import graph_of

Path = tuple[int, ...]
"""Numbers of the calls, outermost first, that lead to a nested model or a layer."""


def main_part(model: Any, path: Sequence[int]) -> Any:
    """Return what a path leads to, opened where it is a layer; the model for none."""
    for number in path:
        node = nodes_in_order(graph_of(model))[number]
        model = node.operation
        if own_graph(model) is None:
            open_for_good(node)
    return model


def check_graph(model: Any) -> None:
    """Raise unless the model has a graph.

    Raises:
        ModelError: if it has none; the text names the parts of it that have one.
    """
    if own_graph(model) is not None:
        return
    inner = [x.name for x in sublayers(model) if x is not model and has_graph(x)]
    if inner:
        next_step = (
            f"its parts {inner} have one: rematerialize these and set the results in "
            "their places before the first call"
        )
    else:
        next_step = "make it of keras.Input and calls of its layers"
    raise ModelError(
        "What is computed again is cut out of a model's graph. Expected: a Sequential "
        f"or Functional model. Received: model={model.name!r}, of class "
        f"{type(model).__name__}, which has none. Next: {next_step}."
    )
