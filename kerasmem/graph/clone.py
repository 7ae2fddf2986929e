"""An independent copy of a model, so that nothing handed in is modified."""

from collections.abc import Iterator
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.layers import sublayers

_NOT_THE_USERS = ("keras", "kerasmem", "tensorflow", "jax", "torch", "builtins", "abc")


def clone(model: Any) -> Any:
    """Return an independent copy of `model` with equal weights, freshly compiled.

    The optimizer starts anew (no slots, iteration 0) with the same settings; loss,
    metrics and the choice of jit are the same.

    Raises:
        ModelError: if the model has no weights yet, or its config does not describe it.
    """
    if not model.built:
        raise ModelError(
            f"The model {model.name!r} has no weights yet. Build it first: call it on "
            "a batch, or give it an Input."
        )
    with keras.saving.custom_object_scope(live_objects(model)):
        copy = _rebuild(model)
        settings = compile_settings(model)
    copy.set_weights(model.get_weights())
    if settings is not None:
        copy.compile(**settings)
    return copy


def compile_settings(model: Any) -> dict[str, Any] | None:
    """Return fresh keyword arguments for `compile` as `model` has them, or None."""
    with keras.saving.custom_object_scope(live_objects(model)):
        config = model.get_compile_config() if model.compiled else None
        if not config:
            return None
        return dict(keras.saving.deserialize_keras_object(config))


def live_objects(model: Any) -> dict[str, Any]:
    """Return the classes and functions of the user's own that `model` is made of."""
    found: dict[str, Any] = {}
    for item in _parts(model):
        for named in (item,) if _is_function(item) else type(item).__mro__:
            if named.__module__.partition(".")[0] not in _NOT_THE_USERS:
                found.setdefault(named.__name__, named)
    return found


def _parts(model: Any) -> Iterator[Any]:
    for layer in sublayers(model):
        yield layer
        yield from (v for v in vars(layer).values() if _is_function(v))
    if model.compiled:
        yield model.optimizer
        yield from keras.tree.flatten(model.loss)
        for metric in model.metrics:
            yield metric
            yield from (v for v in vars(metric).values() if _is_function(v))
        # The metrics as `compile` got them: before the first batch the live list is
        # empty, and nothing public gives the functions among them.
        yield from keras.tree.flatten(
            [
                model._compile_config.config.get(k)
                for k in ("metrics", "weighted_metrics")
            ]
        )


def _is_function(value: Any) -> bool:
    return callable(value) and hasattr(value, "__name__")


def _rebuild(model: Any) -> Any:
    try:
        config = keras.saving.serialize_keras_object(model)
        config.pop("compile_config", None)
        # The config comes from a live object, never from a file: a lambda in it is the
        # caller's own.
        copy = keras.saving.deserialize_keras_object(config, safe_mode=False)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ModelError(
            f"The model {model.name!r} cannot be copied, because its config does not "
            "describe it. Give its custom layers a `get_config` and register them. "
            f"Received: {' '.join(str(error).split())[:300]}"
        ) from error
    if len(copy.weights) != len(model.weights):
        raise ModelError(
            f"A copy of the model {model.name!r} has {len(copy.weights)} weights "
            f"instead of {len(model.weights)}: a custom layer creates weights that its "
            "config does not tell. Give it a `build` method that creates them."
        )
    return copy
