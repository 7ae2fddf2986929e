"""Independent copies of models, from their configs or through a file of Keras."""

import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

# Private: nothing public reads the objects of a `keras.saving.custom_object_scope`.
from keras.src.backend.common.global_state import get_global_attribute  # noqa: TID251

from kerasmem.backends import current
from kerasmem.checks import BACKENDS
from kerasmem.errors import KerasMemError, ModelError
from kerasmem.graph.from_config import (
    LAMBDA_WARNING,
    compile_with,
    compiled_attributes,
    keep_lambdas,
    lambdas_in,
    made_of_config,
    restore_lora,
    set_alike,
    set_compiled_attributes,
    takes,
)
from kerasmem.graph.full_configs import no_copy
from kerasmem.graph.layers import (
    check_built,
    has_graph,
    is_trained,
    nodes_in_order,
    of_one_class,
    own_graph,
    sublayers,
)
from kerasmem.graph.saving import save_untrained, unbuilt_copy
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Model

_NOT_THE_USERS = ("keras", "kerasmem", *BACKENDS, "builtins", "abc")

_SETTINGS = (
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
    keras.dtype_policies.DTypePolicy,
)
"""What a layer is set up with besides functions, and may be of the user's own."""


def clone(model: Model) -> Any:
    """Return an independent copy of `model` with equal state, freshly compiled.

    All that Keras saves is copied: weights, statistics, vocabularies. The optimizer
    starts anew (no slots, iteration 0) with the same settings; loss, metrics and the
    choice of jit are the same.

    Raises:
        ModelError: if the model has no weights yet, or its config does not describe it.
    """
    check_built(model)
    layers = sublayers(model)
    objects = live_objects(model, layers)
    with keras.saving.custom_object_scope(objects), current().replicating(model):
        copy = made_of_config(model, layers)
        if copy is not None and model.compiled:
            unbuilt_copy(model.optimizer)  # the clear error, if it cannot be
            lambdas = lambdas_in(model._compile_config.config)
            settings = settings_of(model.get_compile_config(), objects, lambdas)
            if not compile_with(copy, settings):
                set_compiled_attributes(copy, compiled_attributes(model))
    if copy is None:
        copy = reloaded(model)
        restore_lora(model, copy)
        set_alike(of_one_class(sublayers(copy), layers))
    if len(copy.weights) != len(model.weights):
        raise ModelError(
            f"A copy of the model {model.name!r} has {len(copy.weights)} weights "
            f"instead of {len(model.weights)}: its config does not tell all of it. "
            "Either layers share a weight in a way that Keras does not save, or a "
            "custom layer or model creates weights outside of its `build`."
        )
    for weight, like in zip(copy.weights, model.weights, strict=True):
        if weight.trainable != like.trainable:
            weight.trainable = like.trainable
    return copy


def reloaded(model: Model) -> Any:
    """Return what Keras saves and loads of `model`, freshly compiled.

    Raises:
        ModelError: if it has no weights yet, or cannot be saved and loaded.
    """
    check_built(model)
    objects = live_objects(model)
    # Through a file: only what a layer saves itself is all of its state.
    with tempfile.TemporaryDirectory() as folder, current().replicating(model):
        path = Path(folder) / "model.keras"
        try:
            _save(model, path)
            copy = _load(path, objects)
        except KerasMemError:
            raise
        except Exception as error:
            raise ModelError(no_copy(model.name, error)) from error
    compile_as(copy, model)
    return copy


def _save(model: Model, path: Path) -> None:
    with lambdas_allowed():
        save_untrained(model, path)


@contextmanager
def lambdas_allowed() -> Iterator[None]:
    """Return a scope without Keras's warning: a lambda of the caller's stays here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=LAMBDA_WARNING)
        yield


def _load(path: Path, objects: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`build\(\)` was called on layer")
        # Made by `_save` of a live object: a lambda in it is the caller's own.
        return keras.models.load_model(
            path, custom_objects=objects, compile=False, safe_mode=False
        )


def same_draws(copy: Any, model: Model) -> Any:
    """Return `copy`, which from now on draws the random numbers that `model` would."""
    # A layer without a seed of its own saves no state of its random numbers.
    for own, other in zip(copy.variables, model.variables, strict=True):
        own.assign(to_numpy(other))
    return copy


def compile_settings(
    model: Model, *, complete: bool = True, objects: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """Returns fresh arguments for `compile`; None if Keras did not record all."""
    objects = live_objects(model) if objects is None else objects
    with keras.saving.custom_object_scope(objects), lambdas_allowed():
        config = model.get_compile_config() if model.compiled else None
    if not config:
        return None
    lambdas = lambdas_in(model._compile_config.config)
    settings = settings_of(config, objects, lambdas)
    return None if complete and not takes(model.compile, settings) else settings


def settings_of(
    config: dict[str, Any], objects: dict[str, Any], lambdas: Any = None
) -> dict[str, Any]:
    """Returns fresh arguments for `compile`, with the lambdas of the live ones."""
    with keras.saving.custom_object_scope(objects):
        # The config comes from a live object, never from a file.
        settings = dict(keras.saving.deserialize_keras_object(config, safe_mode=False))
    keep_lambdas(settings, lambdas or {})
    return settings


def compile_as(new: Any, model: Model) -> None:
    """Compile `new` as `model` is, with a fresh optimizer; or not, as `model`."""
    objects = live_objects(model)
    settings = compile_settings(model, complete=False, objects=objects)
    if settings is not None:
        with keras.saving.custom_object_scope(objects):
            if not compile_with(new, settings):
                set_compiled_attributes(new, compiled_attributes(model))


def live_objects(model: Model, layers: list[Any] | None = None) -> dict[str, Any]:
    """Return the classes and functions of the user's own that `model` is made of.

    Args:
        model: a Keras model, with its optimizer, loss and metrics.
        layers: its `sublayers`, where they are known.

    Returns:
        Each under the name by which a config tells of it.
    """
    objects = []
    if model.compiled:
        # The metrics as `compile` got them: before the first batch the live list is
        # empty, and nothing public gives the functions among them.
        config = model._compile_config.config
        objects = [model.optimizer, model.loss]
        objects += [config.get(key) for key in ("metrics", "weighted_metrics")]
        for metric in model.metrics:
            objects += [metric, *filter(_is_function, vars(metric).values())]
    return objects_of(layers or sublayers(model), keras.tree.flatten(objects))


def objects_of(layers: list[Any], used: Sequence[Any] = ()) -> dict[str, Any]:
    """Return what `live_objects` does.

    Args:
        layers: the `sublayers` of a model.
        used: parts of its optimizer, loss and metrics.
    """
    objects = [_saved_class(type(layer)) for layer in layers]
    # Keras puts a wrapper of its own before the `build` of every layer: what a class
    # has under the same name is no part of the layer's.
    objects += [
        _named(value)
        for layer in layers
        for name, value in vars(layer).items()
        if isinstance(value, _SETTINGS)
        or (_is_function(value) and not hasattr(type(layer), name))
    ]
    objects += map(_named, used)
    by_name: dict[str, Any] = {}
    for one in objects:
        if one.__module__.partition(".")[0] in _NOT_THE_USERS or _is_imported(one):
            continue
        if one.__name__ == "<lambda>":  # saved as code, not by name
            continue
        name = keras.saving.get_registered_name(one)
        if by_name.setdefault(name, one) is not one:
            raise ModelError(
                f"The model {layers[0].name!r} has two different parts of one name, "
                "which its config cannot tell apart. Received: "
                f"{one.__name__!r}. Rename one."
            )
    return {**objects_in_scope(), **by_name}


def objects_in_scope() -> dict[str, Any]:
    """Return the objects of the `keras.saving.custom_object_scope` that is open.

    A scope within another one hides its objects, so ours contain them.
    """
    return dict(get_global_attribute("custom_objects_scope_dict", {}))


def _is_imported(one: Any) -> bool:
    is_named = keras.saving.get_registered_name(one) == one.__name__
    is_public = one.__module__.startswith(("keras_hub.", "keras_cv.", "keras_nlp."))
    module = sys.modules.get(one.__module__) if isinstance(one, type) else None
    return is_named and is_public and getattr(module, one.__name__, None) is one


def _named(part: Any) -> Any:
    return part if _is_function(part) else _saved_class(type(part))


def _saved_class(cls: type) -> type:
    return next(c for c in cls.__mro__ if not c.__module__.startswith("kerasmem."))


def _is_function(value: Any) -> bool:
    return callable(value) and hasattr(value, "__name__")


@dataclass(frozen=True)
class PackedModel:
    """What a model of equal state is made of; it can be pickled if `objects` can.

    Args:
        file: what Keras saves of it, without the state of its optimizer.
        settings: config of its `compile`; None if it was not compiled.
        objects: the classes and functions of the user's own in it.
    """

    file: bytes
    settings: dict[str, Any] | None
    objects: dict[str, Any]

    def unpacked(self) -> Any:
        """Return the model, compiled with a fresh optimizer if it was compiled."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(self.file)
            model = _load(path, self.objects)
        if self.settings is not None:
            model.compile(**settings_of(self.settings, self.objects))
        return model


def packed(model: Model) -> PackedModel:
    """Return a built model that Keras can save, packed."""
    objects = live_objects(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        _save(model, path)
        file = path.read_bytes()
    settings = model.get_compile_config() if model.compiled else None
    return PackedModel(file, settings, objects)


def to_read(model: Model) -> Any:
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
    functional = keras.Model(model.input, model.output, name=model.name)
    if sublayers(functional)[1:] != sublayers(model)[1:]:  # some are beside its graph
        return clone(model)
    compile_as(functional, model)
    return functional


def _leaves_nothing(model: Model) -> bool:
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


def _keeps_nothing(layer: Layer) -> bool:
    is_keras = type(layer).__module__.partition(".")[0] == "keras"
    return is_keras and not getattr(layer, "stateful", False)


_FUNCTIONAL = type(keras.Model(*[keras.Input((1,))] * 2))
"""Keras exports no name of the class that this gives."""
