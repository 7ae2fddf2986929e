"""Sends a model to another process, as a config or as a file with weights."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

# Private: no public scope keeps shared layers shared in a config.
from keras.src.saving.serialization_lib import ObjectSharingScope  # noqa: TID251

from kerasmem.errors import KerasMemError, ModelError
from kerasmem.files.write import save_stored
from kerasmem.graph.activation_policy import apply_policy, policy_settings
from kerasmem.graph.clone import lambdas_allowed, live_objects
from kerasmem.graph.from_config import (
    compiled_attributes,
    has_assets,
    keep_lambdas,
    lambdas_in,
    load_saved_state,
    saved_state,
    set_compiled_attributes,
)
from kerasmem.graph.full_configs import cause_of, full_configs, kept_arguments
from kerasmem.graph.layers import has_graph, sublayers
from kerasmem.graph.lora import enable_lora_inside, lora_inside, note_lora_inside
from kerasmem.graph.outputs import without_preprocessor
from kerasmem.types import Model, Optimizer

_PARTS = (keras.Model,)
"""Types of constructor arguments that are sent as separate models."""

_DEFAULT_LOSS = "mean_squared_error"
_SHARED = "shared_object_id"


def pack(
    model: Model, optimizer: Optimizer | None, dtype_policy: str | None
) -> dict[str, Any]:
    """Return a description from which `unpack` creates an equal model with new weights.

    A `dtype_policy` replaces the model's own policy in its layers.

    Raises:
        ModelError: If the config does not describe the model.
    """
    objects = live_objects(model)
    if optimizer is not None:
        kind = _portable(type(optimizer))
        objects |= {keras.saving.get_registered_name(kind): kind}
    own_compile = type(model).compile is not keras.Model.compile
    config = _config_of(model)
    if config and (optimizer is None or own_compile):
        config.pop("compile_config", None)  # a custom `compile` has other arguments
    if dtype_policy is not None:
        config = _with_policy(config, model.dtype_policy.name, dtype_policy)
    is_compiled = bool(model.compiled and model.optimizer)
    with lambdas_allowed():
        settings = model.get_compile_config() if is_compiled else None
    return {
        "config": config,
        "class": type(model),
        "arguments": {} if config else _arguments_of(model),
        "compile": settings or {"loss": _DEFAULT_LOSS},
        "lambdas": lambdas_in(model._compile_config.config) if is_compiled else {},
        "optimizer": optimizer and keras.optimizers.serialize(optimizer),
        "compiled": compiled_attributes(model) if own_compile else {},
        "objects": objects,
        "parameters": sum(math.prod(w.shape) for w in model.weights),
        "inside": lora_inside(model),
        "frozen": [n for n, w in enumerate(model.weights) if not w.trainable],
        "activation_policy": policy_settings(model),
        "states": [saved_state(layer) for layer in _with_state(model)],
    }


def _portable(kind: type) -> type:
    """Return Keras's public class of an optimizer, without its form for torch."""
    backend = "keras.src.backend."
    return next(c for c in kind.__mro__ if not c.__module__.startswith(backend))


def _config_of(model: Model) -> dict[str, Any] | None:
    """Return the config of a model, or None if its arguments describe the model."""
    try:
        with (
            ObjectSharingScope(),
            full_configs(sublayers(model)),
            lambdas_allowed(),
            without_preprocessor([model]),  # the child passes token ids, not texts
        ):
            return _numbered(keras.saving.serialize_keras_object(model), {})
    except KerasMemError:
        raise
    except (TypeError, ValueError, NotImplementedError) as error:
        if kept_arguments(model, _PARTS):
            return None
        raise ModelError(
            f"The model {model.name!r} cannot be sent to another process, because its "
            f"config does not describe it: {cause_of(error).rstrip('.')}. Expected: a "
            "`get_config` method in every custom layer. Next: add it"
            f"{_or_analytic(model)}."
        ) from error


def _arguments_of(model: Model) -> dict[str, Any]:
    """Return the constructor arguments of a class that takes models, such as a GAN.

    Empty if an argument is neither a built model nor plain data, or is not stored under
    its name.
    """
    arguments = kept_arguments(model, _PARTS) or {}
    return {
        name: {"model": pack(value, None, None)}
        if isinstance(value, _PARTS)
        else {"value": value}
        for name, value in arguments.items()
    }


def unpack(sent: Mapping[str, Any], *, jit_compile: bool) -> Any:
    """Create the model described by `pack`. Compiles it if an optimizer was packed.

    Raises:
        ModelError: If the config does not describe the model.
    """
    with keras.saving.custom_object_scope(_with_modules(sent["objects"])):
        load = keras.saving.deserialize_keras_object
        try:
            with ObjectSharingScope():
                model = _model_of(sent, jit_compile=jit_compile)
        except (TypeError, ValueError) as error:
            raise ModelError(
                "The model cannot be created from its config in another process: "
                f"{cause_of(error).rstrip('.')}. Expected: a `get_config` method with "
                "all arguments."
            ) from error
        # A custom config may contain neither.
        note_lora_inside(model, sent["inside"])
        enable_lora_inside(model)
        if sum(math.prod(w.shape) for w in model.weights) != sent["parameters"]:
            raise ModelError(
                f"The model {model.name!r} created from its config differs: weights "
                "are missing. Expected: a `get_config` method with all arguments, and "
                "a `build` method that creates all weights. Next: complete them"
                f"{_or_analytic(model)}."
            )
        for layer, state in zip(_with_state(model), sent["states"], strict=True):
            load_saved_state(layer, *state)
        for number in sent["frozen"]:
            model.weights[number].trainable = False
        if sent["optimizer"] is not None:
            settings = dict(load(sent["compile"], safe_mode=False))
            keep_lambdas(settings, sent["lambdas"])
            settings["optimizer"] = keras.optimizers.deserialize(sent["optimizer"])
            keras.Model.compile(model, **settings | {"jit_compile": jit_compile})
            set_compiled_attributes(model, sent["compiled"])
        else:
            model.jit_compile = jit_compile
    apply_policy(model, sent["activation_policy"])
    return model


def _model_of(sent: Mapping[str, Any], *, jit_compile: bool) -> Any:
    if sent["config"] is not None:
        # Safe mode is not needed: the config is from a live object, never from a file.
        return keras.saving.deserialize_keras_object(sent["config"], safe_mode=False)
    arguments = {
        name: unpack(one["model"], jit_compile=jit_compile)
        if "model" in one
        else one["value"]
        for name, one in sent["arguments"].items()
    }
    return sent["class"](**arguments)


def _with_state(model: Model) -> list[Any]:
    preprocessor = getattr(model, "preprocessor", None)  # not sent
    outside = [] if preprocessor is None else sublayers(preprocessor)
    layers = filter(has_assets, sublayers(model))
    return [layer for layer in layers if layer not in outside]


def send(model: Model, path: Path) -> dict[str, Any]:
    """Save `model` to `path`. Returns the description for `receive`."""
    save_stored(model, path)
    return {"model": str(path), "objects": live_objects(model)}


def receive(sent: Mapping[str, Any]) -> Any:
    """Load the model that `send` saved, without compiling."""
    objects = _with_modules(sent["objects"])
    # Safe mode is not needed: the parent just wrote the file from a live model.
    return keras.models.load_model(
        sent["model"], custom_objects=objects, compile=False, safe_mode=False
    )


def _with_modules(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects and all other definitions of their modules by name.

    Imports from other packages are left out, since NumPy's `zeros` would replace
    Keras's initializer.
    """
    modules = {each.__module__ for each in objects.values()} & set(sys.modules)
    scope: dict[str, Any] = {}
    for name in sorted(modules - {"__main__"}):  # `__main__` is the child's script
        package = name.partition(".")[0]
        for key, value in vars(sys.modules[name]).items():
            home = getattr(value, "__module__", None)
            if isinstance(home, str) and home.partition(".")[0] == package:
                scope[key] = value
    return scope | dict(objects)


def _or_analytic(model: Model) -> str:
    return ", or use method='analytic'" if has_graph(model) else ""


def _numbered(config: Any, numbers: dict[int, int]) -> Any:
    if isinstance(config, (list, tuple)):
        return [_numbered(item, numbers) for item in config]
    if not isinstance(config, dict):
        return config
    new_config = {key: _numbered(value, numbers) for key, value in config.items()}
    if _SHARED in new_config:
        new_config[_SHARED] = numbers.setdefault(new_config[_SHARED], len(numbers))
    return new_config


def _with_policy(config: Any, old: str, new: str) -> Any:
    if isinstance(config, list):
        return [_with_policy(item, old, new) for item in config]
    if not isinstance(config, dict):
        return config
    is_policy = config.get("class_name") == "DTypePolicy"
    if is_policy and config.get("config", {}).get("name") == old:
        return {**config, "config": {**config["config"], "name": new}}
    return {key: _with_policy(value, old, new) for key, value in config.items()}
