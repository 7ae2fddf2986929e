"""A model of the very layers of another one, to be read without touching that one."""

from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.graph.clone import clone, compile_as
from kerasmem.graph.layers import (
    has_graph,
    is_trained,
    nodes_in_order,
    own_graph,
    sublayers,
)


def to_read(model: Any) -> Any:
    """Return a model that computes as `model` does, and may be compiled and evaluated.

    It has the same layers where nothing that an evaluation does is left in them, so
    that it takes no memory; else it is a copy.

    Args:
        model: a built model, which stays as it is.

    Raises:
        ModelError: if it takes a copy, and none can be made.
    """
    if not _leaves_nothing(model):
        return clone(model)
    made = keras.Model(model.input, model.output, name=model.name)
    if sublayers(made)[1:] != sublayers(model)[1:]:  # some are beside its graph
        return clone(model)
    compile_as(made, model)
    return made


def _leaves_nothing(model: Any) -> bool:
    """Return whether the layers of a model are as before once it was evaluated.

    JAX takes the values of all variables away while a model runs: whoever interrupts
    it there would be left without.
    """
    graphs = [own_graph(layer) for layer in sublayers(model) if has_graph(layer)]
    return (
        not current().hands_state_on
        and bool(graphs)
        and type(model) is _FUNCTIONAL
        and model.trainable
        and all(map(_keeps_nothing, sublayers(model)))
        and not any(
            is_trained(node) for graph in graphs for node in nodes_in_order(graph)
        )
    )


def _keeps_nothing(layer: Any) -> bool:
    is_keras = type(layer).__module__.partition(".")[0] == "keras"
    return is_keras and not getattr(layer, "stateful", False)


_FUNCTIONAL = type(keras.Model(*[keras.Input((1,))] * 2))
"""Keras exports no name of the class that this gives."""
