"""A graph for a model that has none."""

from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.layers import check_built, listed_graph, own_graph


def with_graph(model: Any) -> Any:
    """Return the model, or a Functional model of its layers if it is subclassed.

    Raises:
        ModelError: if its `call` cannot be followed.
    """
    check_built(model)
    if listed_graph(model) is not None:
        return model
    graph = own_graph(model)
    if graph is None:
        inlined = _followed(model)
    else:  # built in its constructor, whose arguments alone are in its config
        inlined = keras.Model(graph.input, graph.output, name=model.name)
    if {id(v) for v in inlined.variables} != {id(v) for v in model.variables}:
        raise _no_graph(model, "it has weights that its layers do not know of")
    return inlined


def _followed(model: Any) -> Any:
    """Return the graph that a subclassed model's `call` draws."""
    shape = (model.get_build_config() or {}).get("input_shape")
    if shape is None:
        raise _no_graph(model, "its input shape is not known")
    try:
        inputs = _inputs(shape, getattr(model, "input_dtype", None) or "float32")
        return keras.Model(inputs, model.call(inputs), name=model.name)
    except Exception as error:
        raise _no_graph(model, str(error)) from error


def _inputs(shape: Any, dtype: str) -> Any:
    """Return inputs of a shape, or of a list or dict of shapes, with the batch axis."""
    if isinstance(shape, dict):
        return {name: _inputs(inner, dtype) for name, inner in shape.items()}
    if any(isinstance(size, list | tuple | dict) for size in shape):
        return [_inputs(inner, dtype) for inner in shape]
    return keras.Input(batch_shape=(None, *shape[1:]), dtype=dtype)


def _no_graph(model: Any, why: str) -> ModelError:
    return ModelError(
        f"The channels of the subclassed model {model.name!r} cannot be followed: its "
        "`call` must be made of layers and keras.ops. "
        f"Received: {' '.join(why.split())[:200]}."
    )
