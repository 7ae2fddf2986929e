"""Copies models of Keras and KerasHub layers from their config, without a file.

A file contains all state that layers save. For most Keras layers this is only their
variables, which can be copied one by one.
"""

import inspect
import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

# Private: layers shared by two other layers are only recorded in this scope.
from keras.src.saving.serialization_lib import ObjectSharingScope  # noqa: TID251

from kerasmem.backends import current
from kerasmem.backends.lazy import lazy_variables, source_at_rest
from kerasmem.graph.full_configs import full_configs, keep_omitted
from kerasmem.graph.layers import own_variables, sublayers, without_inputs
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Model, Variable

_PLAIN = {
    layer.load_own_variables
    for layer in (
        *(keras.layers.Layer, keras.layers.Conv1D, keras.layers.Dense),
        *(keras.layers.EinsumDense, keras.layers.Embedding),
    )
}
"""Methods that load only the variables of a layer, apart from LoRA and codes."""

_MORE = ("quantization_mode", "preprocessor")
"""Attributes of layers with more state: codes, or a tokenizer in the preprocessor. On
torch, KerasHub tasks do not track the preprocessor."""

_WITHOUT_POLICY = (
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)
"""Layers without weights whose config omits their dtype policy."""

LAMBDA_WARNING = ".*includes a `lambda`"
"""Pattern of the Keras warning about a lambda in a config."""


def made_of_config(
    model: Model, layers: list[Any], *, shares: bool = False
) -> Any | None:
    """Returns an uncompiled copy of `model`, or None if the copy needs a file.

    On TensorFlow, both models share the memory of a weight until one changes it. On JAX
    they do if `shares`; then neither may be trained.
    """
    layers = without_inputs(layers)
    kinds = list(map(type, layers))
    has_more = any(getattr(x, name, None) for x in layers for name in _MORE)
    if has_more or not all(map(_is_plain, set(kinds))):
        return None
    with without_first_values(), full_configs(layers):
        copy = _of_config(kinds[0], model.get_config)
        if copy is None:
            return None
        copies = without_inputs(sublayers(copy))
        if list(map(type, copies)) != kinds:
            return None
        _enable_lora(layers, copies)
        weights, others = (
            [(w.name, tuple(w.shape), w.dtype) for w in one.weights]
            for one in (model, copy)
        )
        if weights != others:
            return None
        for weight, other in zip(model.weights, copy.weights, strict=True):
            other.assign(_value_of(weight, shares=shares))
    set_alike(zip(copies, layers, strict=True))
    return copy


def set_alike(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Copies frozen states, dtype policies and arguments that configs may omit.

    `pairs` are pairs of a new layer and the original layer.
    """
    for own, other in pairs:
        if own.trainable != other.trainable:  # the setter also changes sublayers
            own.trainable = other.trainable
        if isinstance(own, _WITHOUT_POLICY):
            own.dtype_policy = other.dtype_policy
        keep_omitted([own])


@contextmanager
def without_first_values() -> Iterator[None]:
    """Delays the initialization of variables to the end of the scope.

    Variables that are assigned in the scope are never initialized.
    """
    values = current().lazy_values()
    if values.why_not() is not None:
        yield
        return
    with lazy_variables(values, settled=True):
        yield


def _of_config(cls: type, get_config: Callable[[], dict[str, Any]]) -> Any | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # already shown for the original model
            warnings.filterwarnings("error", message=LAMBDA_WARNING)
            with ObjectSharingScope():
                # JSON, as in a file, so that nested objects are not shared.
                config = uncompiled(json.loads(json.dumps(get_config())))
            with ObjectSharingScope():
                return cls.from_config(config)
    except Exception:  # noqa: BLE001 - any layer may fail; then a file is used
        return None


def uncompiled(config: Any) -> Any:
    """Removes the compile configs of nested models from a config.

    Compiling would build an optimizer from variables without a value.
    """
    if isinstance(config, list):
        return [uncompiled(part) for part in config]
    if not isinstance(config, dict):
        return config
    return {k: uncompiled(v) for k, v in config.items() if k != "compile_config"}


def _enable_lora(layers: Sequence[Any], copies: Sequence[Any]) -> None:
    for layer, copy in zip(layers, copies, strict=True):
        if getattr(layer, "lora_enabled", False):
            if not copy.lora_enabled:
                copy.enable_lora(layer.lora_rank, layer.lora_alpha)
            copy.lora_alpha = layer.lora_alpha  # Keras loses it when building


def restore_lora(model: Model, copy: Any) -> None:
    """Separates LoRA weights again in a copy that Keras loaded merged."""
    layers, copies = (without_inputs(sublayers(one)) for one in (model, copy))
    pairs = [
        (old, new)
        for old, new in zip(layers, copies, strict=False)
        if type(old) is type(new)
        and getattr(old, "lora_enabled", False)
        and not new.lora_enabled
    ]
    if pairs:
        _enable_lora(*zip(*pairs, strict=True))
    for old, new in pairs:
        for before, after in zip(own_variables(old), own_variables(new), strict=True):
            after.assign(to_numpy(before))


def _is_plain(cls: type) -> bool:
    return (
        cls.__module__.startswith(("keras.", "keras_hub.", "kerasmem.extras.chunked."))
        and cls is not keras.layers.Lambda
        and not _saves_more(cls)
    )


def _saves_more(cls: type) -> bool:
    has_assets = getattr(cls, "load_assets", None) is not None
    return has_assets or cls.load_own_variables not in _PLAIN


def copy_saved_state(old: Any, new: Any) -> None:
    """Copies state that layers save with custom methods, such as a vocabulary.

    Skips layers whose variables have other shapes in `new`. The models may share
    layers.
    """
    layers = sublayers(old), sublayers(new)
    common_layers = set(layers[0]).intersection(layers[1])
    stateful = [
        [x for x in each if _saves_more(type(x)) and x not in common_layers]
        for each in layers
    ]
    for before, after in zip(*stateful, strict=False):
        shapes = [[v.shape for v in own_variables(x)] for x in (before, after)]
        is_ours = type(before).load_own_variables.__module__.startswith("kerasmem.")
        if type(before) is not type(after) or shapes[0] != shapes[1] or is_ours:
            continue
        load_saved_state(after, *saved_state(before))


def has_assets(layer: Layer) -> bool:
    """Returns whether a layer saves files, such as an adapted vocabulary."""
    return hasattr(layer, "save_assets")


def saved_state(layer: Layer) -> tuple[dict[str, np.ndarray], dict[str, bytes]]:
    """Returns the saved state of a layer: variables, and file contents by path."""
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    files = {}
    if has_assets(layer):
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            paths = filter(Path.is_file, Path(folder).rglob("*"))
            files = {str(x.relative_to(folder)): x.read_bytes() for x in paths}
    return {name: to_numpy(value) for name, value in store.items()}, files


def load_saved_state(
    layer: Layer, store: Mapping[str, np.ndarray], files: Mapping[str, bytes]
) -> None:
    """Loads the output of `saved_state` into a layer of the same class."""
    layer.load_own_variables(dict(store))
    if has_assets(layer):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            layer.load_assets(folder)


def lambdas_in(live: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `compile` that contain lambdas, other values as None."""
    arguments = {}
    for key in ("loss", "metrics", "weighted_metrics"):
        if any(map(_is_lambda, keras.tree.flatten(live.get(key)))):
            arguments[key] = keras.tree.map_structure(
                lambda value: value if _is_lambda(value) else None, live[key]
            )
    return arguments


def keep_lambdas(settings: dict[str, Any], lambdas: Mapping[str, Any]) -> None:
    """Puts the lambdas of a compiled model into `settings`, in place.

    Lambdas from a config lose access to global variables.
    """
    for key, live in lambdas.items():
        settings[key] = keras.tree.map_structure(
            lambda own, copy: copy if own is None else own, live, settings[key]
        )


def takes(function: Callable[..., Any], settings: dict[str, Any]) -> bool:
    """Returns whether a function accepts these arguments and needs no others."""
    with suppress(TypeError):
        return bool(inspect.signature(function).bind(**settings))
    return False


def compile_with(model: Model, settings: dict[str, Any]) -> bool:
    """Compiles a model, without a custom `compile` that needs other arguments.

    Returns whether the `compile` method of the model was used.
    """
    is_complete = takes(model.compile, settings)
    if is_complete:
        model.compile(**settings)
    else:
        keras.Model.compile(model, **settings)
    return is_complete


def compiled_attributes(model: Model) -> dict[str, Any]:
    """Returns the configs of attributes that a custom `compile` may have set.

    These are optimizers, losses and metrics. Keras does not record them.
    """
    kinds = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
    configs = {}
    for name, value in vars(model).items():
        # Objects that Keras creates in `compile` have no config.
        with suppress(NotImplementedError):
            if isinstance(value, kinds):
                configs[name] = keras.saving.serialize_keras_object(value)
    return configs


def set_compiled_attributes(model: Model, configs: Mapping[str, Any]) -> None:
    """Creates the attributes that a model lacks from their configs."""
    for name, config in configs.items():
        if name not in vars(model):
            # Safe, because the config comes from a live object, not from a file.
            load = keras.saving.deserialize_keras_object
            # No issue known: Keras 3.15 records no arguments of a user's `compile`.
            setattr(model, name, load(config, safe_mode=False))


def _is_lambda(value: Any) -> bool:
    return getattr(value, "__name__", None) == "<lambda>"


def _value_of(variable: Variable, *, shares: bool) -> Any:
    source = source_at_rest(variable)
    if source is not None:  # the source is read-only
        return source
    if current().hands_state_on and not shares:
        # Copied, because a training step donates the memory of old values.
        return np.array(to_numpy(variable))
    return variable.value
