"""A graph for a model that has none."""

from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.built import check_built
from kerasmem.graph.layers import has_graph


def with_graph(model: Any) -> Any:
    """Return the model, or a Functional model of its layers if it is subclassed.

    Raises:
        ModelError: if its `call` cannot be followed.
    """
    check_built(model)
    if has_graph(model):
        return model
    config = model.get_build_config() or {}
    shape = config.get("input_shape")
    if not isinstance(shape, list | tuple) or any(isinstance(s, dict) for s in shape):
        raise _no_graph(model, "its input shape is not known")
    dtype = getattr(model, "input_dtype", None) or "float32"
    try:
        inputs = keras.Input(batch_shape=(None, *shape[1:]), dtype=dtype)
        outputs = model.call(inputs)
        inlined = keras.Model(inputs, outputs, name=model.name)
    except Exception as error:
        raise _no_graph(model, str(error)) from error
    if {id(v) for v in inlined.variables} != {id(v) for v in model.variables}:
        raise _no_graph(model, "it has weights that its layers do not know of")
    return inlined


def _no_graph(model: Any, why: str) -> ModelError:
    return ModelError(
        f"The channels of the subclassed model {model.name!r} cannot be followed: its "
        "`call` must be made of layers and keras.ops on one tensor. "
        f"Received: {' '.join(why.split())[:200]}."
    )
