"""Independent copies of models, from their configs or through a Keras file."""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

# Private: no public function reads the objects of a custom object scope.
from keras.src.backend.common.global_state import get_global_attribute  # noqa: TID251

from kerasmem.backends import current
from kerasmem.backends.lazy import source_at_rest
from kerasmem.checks import BACKENDS
from kerasmem.errors import KerasMemError, ModelError
from kerasmem.graph.computed import ComputedVariable
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
from kerasmem.graph.layers import check_built, of_one_class, sublayers
from kerasmem.graph.saving import cached_skip_sets, save_untrained, unbuilt_copy
from kerasmem.graph.values import to_numpy
from kerasmem.types import Model

_NOT_THE_USERS = ("keras", "kerasmem", *BACKENDS, "builtins", "abc")

_SETTINGS = (
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
    keras.dtype_policies.DTypePolicy,
)
"""Types of layer settings, besides functions, that can be custom classes."""


@contextmanager
def _default_policy(policy: Any) -> Iterator[None]:
    """Create models with a dtype policy, which the config of a graph lacks."""
    before = keras.config.dtype_policy()
    if type(policy) is keras.dtype_policies.DTypePolicy:
        keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def clone(model: Model, *, shares: bool = False) -> Any:
    """Returns an independent, compiled copy of `model` with equal state.

    Copies weights, statistics, vocabularies, loss, metrics and `jit_compile`. The
    optimizer of the copy has the same settings and is reset: iteration 0, no slots.
    With `shares`, see `made_of_config`; `part_from` ends the sharing.

    Raises:
        ModelError: If the model has no weights yet, or its config is incomplete.
    """
    check_built(model)
    layers = sublayers(model)
    objects = live_objects(model, layers)
    with _default_policy(model.dtype_policy):
        with (
            keras.saving.custom_object_scope(objects),
            current().replicating(model),
            lambdas_allowed(),
        ):
            copy = made_of_config(model, layers, shares=shares)
            if copy is not None and model.compiled:
                unbuilt_copy(model.optimizer)  # raises a clear error if not copyable
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
            f"instead of {len(model.weights)}, because its config is incomplete. "
            "Either layers share a weight in a way that Keras does not save, or a "
            "custom layer or model creates weights outside of its `build`."
        )
    for weight, like in zip(copy.weights, model.weights, strict=True):
        if weight.trainable != like.trainable:
            weight.trainable = like.trainable
    return copy


def part_from(copy: Model, model: Model) -> None:
    """Ends the sharing of `clone`: copies the values that both models have."""
    if not current().hands_state_on:
        return
    both = [
        [v for v in x.variables if source_at_rest(v) is None] for x in (model, copy)
    ]
    values = {id(variable.value) for variable in both[0]}
    for variable in both[1]:
        if id(variable.value) in values:
            variable.assign(np.array(to_numpy(variable)))


def reloaded(model: Model) -> Any:
    """Saves and loads `model` with Keras. Returns the compiled copy."""
    check_built(model)
    objects = live_objects(model)
    # A file, because only the save methods of a layer include all of its state.
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
    """Suppresses the warning of Keras about lambdas, which stay in this process.

    See `lambda_errors`.
    """
    with warnings.catch_warnings(), lambda_errors():
        warnings.filterwarnings("ignore", message=LAMBDA_WARNING)
        yield


@contextmanager
def lambda_errors() -> Iterator[None]:
    """Raises `ModelError` for a lambda without source code, which Keras cannot save."""
    try:
        yield
    except OSError as error:
        if "source code" not in str(error):
            raise
        raise ModelError(
            "The model has a lambda without source code, so Keras cannot save it. "
            "Next: use a named function in place of the lambda."
        ) from error


def _load(path: Path, objects: dict[str, Any]) -> Any:
    with warnings.catch_warnings(), cached_skip_sets():
        warnings.filterwarnings("ignore", message=r"`build\(\)` was called on layer")
        # The optimizer of a nested compiled model is saved without its slots.
        warnings.filterwarnings("ignore", message="Skipping variable loading for opt")
        # Safe, because `_save` wrote the file from a live object.
        return keras.models.load_model(
            path, custom_objects=objects, compile=False, safe_mode=False
        )


def same_draws(copy: Any, model: Model) -> Any:
    """Copies the random state of `model` to `copy`. Returns `copy`."""
    # A layer without an explicit seed does not save its random state.
    for own, other in zip(copy.variables, model.variables, strict=True):
        own.assign(to_numpy(other))
    return copy


def compile_settings(model: Model) -> dict[str, Any] | None:
    """Returns new arguments for `compile`, or None if Keras did not record all."""
    objects = live_objects(model)
    with keras.saving.custom_object_scope(objects), lambdas_allowed():
        config = model.get_compile_config() if model.compiled else None
    if not config:
        return None
    lambdas = lambdas_in(model._compile_config.config)
    settings = settings_of(config, objects, lambdas)
    return settings if takes(model.compile, settings) else None


def settings_of(
    config: dict[str, Any], objects: dict[str, Any], lambdas: Any = None
) -> dict[str, Any]:
    """Returns new arguments for `compile`, with the lambdas of the original model."""
    with keras.saving.custom_object_scope(objects):
        # Safe, because the config comes from a live object, not from a file.
        settings = dict(keras.saving.deserialize_keras_object(config, safe_mode=False))
    keep_lambdas(settings, lambdas or {})
    return settings


def compile_as(new: Any, model: Model) -> None:
    """Compiles `new` with the settings of `model`, if `model` is compiled."""
    compiler_of(model)(new)


def compiler_of(model: Model) -> Callable[[Any], None]:
    """Returns a function that compiles a model like `model`, without a reference to it.

    The function does nothing if `model` is not compiled.
    """
    objects = live_objects(model)
    with keras.saving.custom_object_scope(objects), lambdas_allowed():
        config = model.get_compile_config() if model.compiled else None
    if not config:
        return lambda _: None
    lambdas = lambdas_in(model._compile_config.config)
    attributes = {} if takes(model.compile, config) else compiled_attributes(model)

    def compile_alike(new: Any) -> None:
        with keras.saving.custom_object_scope(objects):
            if not compile_with(new, settings_of(config, objects, lambdas)):
                set_compiled_attributes(new, attributes)

    return compile_alike


def live_objects(model: Model, layers: list[Any] | None = None) -> dict[str, Any]:
    """Returns the custom classes and functions of `model` by their name in a config.

    Includes the optimizer, the loss and the metrics. `layers` are the `sublayers` of
    the model, if already known.
    """
    objects = []
    if model.compiled:
        # Private: the arguments of `compile`, because the public list of metrics is
        # empty before the first batch.
        config = model._compile_config.config
        objects = [model.optimizer, model.loss]
        objects += [config.get(key) for key in ("metrics", "weighted_metrics")]
        for metric in model.metrics:
            objects += [metric, *filter(_is_function, vars(metric).values())]
    return objects_of(layers or sublayers(model), keras.tree.flatten(objects))


def objects_of(layers: list[Any], used: Sequence[Any] = ()) -> dict[str, Any]:
    """Returns the custom objects of layers and of other parts; see `live_objects`."""
    objects = [_saved_class(type(layer)) for layer in layers]
    # Keras wraps the `build` of every layer, so methods of the class are excluded.
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
        if one.__name__ == "<lambda>":  # saved as code, not by name
            continue
        package = (one.__module__ or "").partition(".")[0]
        if package in _NOT_THE_USERS or _is_imported(one):
            continue
        name = keras.saving.get_registered_name(one)
        if by_name.setdefault(name, one) is not one:
            raise ModelError(
                f"The model {layers[0].name!r} has two different custom objects with "
                f"the same name. Received: {one.__name__!r}. "
                "Next: rename one of them."
            )
    return {**objects_in_scope(), **by_name}


def objects_in_scope() -> dict[str, Any]:
    """Returns the objects of the current `keras.saving.custom_object_scope`.

    A nested scope hides the objects of the outer scope, so it must include them.
    """
    return dict(get_global_attribute("custom_objects_scope_dict", {}))


def _is_imported(one: Any) -> bool:
    is_named = keras.saving.get_registered_name(one) == one.__name__
    is_public = (one.__module__ or "").startswith(
        ("keras_hub.", "keras_cv.", "keras_nlp.")
    )
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
    """Serialized model. Can be pickled if `objects` can.

    `file` is the content of a Keras file without optimizer state. `settings` is the
    config of `compile`, or None.
    """

    file: bytes
    settings: dict[str, Any] | None
    objects: dict[str, Any]

    def unpacked(self) -> Any:
        """Returns the model, with a reset optimizer if it was compiled."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(self.file)
            model = _load(path, self.objects)
        if self.settings is not None:
            model.compile(**settings_of(self.settings, self.objects))
        return model


def packed(model: Model) -> PackedModel:
    """Serializes a built model."""
    objects = live_objects(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        _save(model, path)
        file = path.read_bytes()
    settings = model.get_compile_config() if model.compiled else None
    return PackedModel(file, settings, objects)


@contextmanager
def unchanged_state(*models: Model) -> Iterator[None]:
    """Restores statistics, recurrent states and seeds of models after the scope."""
    # Private: public lists also contain frozen weights and variables of sublayers.
    variables = [
        variable
        for model in models
        for layer in sublayers(model)
        for variable in (
            *layer._non_trainable_variables,
            *(generator.state for generator in layer._seed_generators),
            *filter(_is_variable, keras.tree.flatten(getattr(layer, "states", None))),
        )
        if not isinstance(variable, ComputedVariable)
        and source_at_rest(variable) is None
    ]
    values = [np.array(to_numpy(variable)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _is_variable(value: Any) -> bool:
    return isinstance(value, keras.Variable)
