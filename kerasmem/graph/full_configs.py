"""Complete configs of layers whose `get_config` is missing or leaves arguments out."""

import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import FunctionType
from typing import Any

import keras
import numpy as np

from kerasmem.errors import without_config
from kerasmem.types import Layer

_OF_ANY_LAYER = ("name", "trainable", "dtype", "activity_regularizer")
"""Arguments included in `keras.layers.Layer.get_config`."""

_KINDS = (
    *(str, int, float, np.generic, FunctionType, keras.initializers.Initializer),
    *(keras.regularizers.Regularizer, keras.constraints.Constraint),
)
"""Types of arguments that a config can contain, also in lists, tuples and dicts."""

_OMITTED = {
    # keras-team/keras-hub#1895 added the argument without its entry in `get_config`.
    "LlamaBackbone": ("tie_word_embeddings",),
}
"""Arguments that `get_config` of KerasHub's classes omits; each is an attribute."""

_FROM_CONFIG = [x.from_config.__func__ for x in (keras.layers.Layer, keras.Model)]
"""Default implementations, which pass the whole config to the constructor."""

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@contextmanager
def full_configs(layers: Iterable[Any]) -> Iterator[None]:
    """Completes the configs of layers with all constructor arguments in the scope.

    A model saved in the scope can be loaded anywhere. The following configs are
    completed:

    - Layers without `get_config` whose arguments Keras did not record, if each argument
      is an attribute of the same name. Supported are numbers, strings, None,
      initializers, functions, and containers of these. For other arguments, Keras
      raises its usual error.
    - Custom layers: arguments that Keras recorded and `get_config` omits. Entries that
      the constructor does not accept are removed.
    - KerasHub classes in a table of known omissions.

    Args:
        layers: Layers of a model, each once. Restored at the end of the scope.
    """
    changed_layers = []
    try:
        for layer in layers:
            cls = type(layer)
            if _package(cls) in ("keras", "kerasmem") or "get_config" in vars(layer):
                continue
            has_default = cls.get_config is keras.layers.Layer.get_config
            is_silent = has_default and layer._auto_config is None
            arguments = _arguments_of(layer) if is_silent else None
            if arguments is None and not _may_omit(cls):
                continue
            # Keras reads this attribute to decide whether to add recorded arguments.
            _complete(layer, arguments, is_default=arguments is None and has_default)
            changed_layers.append(layer)
        yield
    finally:
        for layer in changed_layers:
            object.__delattr__(layer, "get_config")


def keep_omitted(layers: Iterable[Any]) -> None:
    """Lets KerasHub's layers save the arguments that their `get_config` omits.

    Not for layers with codes or factors, whose config contains the original layer.
    """
    for layer in layers:
        if _package(type(layer)) == "keras_hub" and _omitted(type(layer)):
            _complete(layer, None, is_default=False)


def _complete(
    layer: Layer, arguments: dict[str, Any] | None, *, is_default: bool
) -> None:
    get_config = partial(_completed, layer, arguments)
    get_config._is_default = is_default  # type: ignore[attr-defined]
    # No issue known for custom layers; see `_OMITTED` for KerasHub layers.
    object.__setattr__(layer, "get_config", get_config)


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _may_omit(cls: type) -> bool:
    if _package(cls) == "keras_hub":
        return bool(_omitted(cls))
    return getattr(cls.from_config, "__func__", None) in _FROM_CONFIG


@cache
def _omitted(cls: type) -> tuple[str, ...]:
    return sum((_OMITTED.get(base.__name__, ()) for base in cls.__mro__), ())


def _completed(layer: Layer, arguments: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the config of a layer with its omitted arguments.

    `arguments` are serialized constructor arguments if Keras recorded none.
    """
    cls = type(layer)
    if names := _omitted(cls):
        return cls.get_config(layer) | {name: getattr(layer, name) for name in names}
    arguments_of_init = dict(getattr(layer._auto_config, "config", {}))
    try:
        config = cls.get_config(layer)
    except Exception:
        if not arguments_of_init:
            raise
        config = keras.layers.Layer.get_config(layer)
    parameters = inspect.signature(cls.__init__).parameters
    non_defaults = {
        name: value
        for name, value in arguments_of_init.items()
        if name in parameters and value != parameters[name].default
    }
    config = (non_defaults if arguments is None else arguments) | config
    if "input_layers" in config or any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
    ):
        return config
    # A custom `from_config` may read the arguments of `keras.layers.Layer`.
    names = {*parameters, *(() if _may_omit(cls) else _OF_ANY_LAYER[1:])}
    return {name: value for name, value in config.items() if name in names}


def _arguments_of(layer: Layer) -> dict[str, Any] | None:
    values = kept_arguments(layer)
    if values is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lambdas, which stay in this process
        return {
            name: keras.saving.serialize_keras_object(values[name]) for name in values
        }


def kept_arguments(layer: Layer, kinds: tuple[type, ...] = ()) -> dict[str, Any] | None:
    """Returns the constructor arguments from attributes of the same names.

    Returns None if an argument is missing or not supported. `kinds` are additional
    supported types.
    """
    attributes = vars(layer) | vars(layer).get(
        "_modules", {}
    )  # torch stores layers here
    names = _parameters(type(layer))
    is_known = (
        name in attributes
        and (isinstance(attributes[name], kinds) or _is_plain(attributes[name]))
        for name in names
    )
    return {name: attributes[name] for name in names} if all(is_known) else None


@cache
def _parameters(cls: type) -> list[str]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    names = [one.name for one in parameters if one.kind not in _SEVERAL]
    return [name for name in names if name not in _OF_ANY_LAYER]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):  # such as an initializer in a loaded model
        return all(map(_is_plain, [*value, *value.values()]))
    return value is None or isinstance(value, _KINDS)


_NEXT = {
    "get_config": "add a `get_config` to this class that returns all arguments of its "
    "`__init__`, and a `from_config` if these are layers or arrays",
    "keyword argument": "let `__init__` take `**kwargs` and pass them to "
    "`super().__init__`",
    "positional argument": "add this argument to `get_config`",
    "variables": "create all weights in `__init__` or `build`, and return all "
    "arguments of `__init__` from `get_config`",
    "Could not locate": "register it with `keras.saving.register_keras_serializable`",
}
"""Next step for each part of a cause."""


def no_copy(name: str, error: Exception) -> str:
    """Returns the message for an error of Keras while copying a model."""
    cause = cause_of(error)
    steps = [step for part, step in _NEXT.items() if part in cause]
    if "{'value': [" in str(error):  # the code of a lambda
        steps = ["use named functions in place of lambdas"]
    steps.append("make `model.save` and `keras.models.load_model` work with this model")
    return (
        f"The model {name!r} cannot be copied: Keras cannot save and load it. "
        f"Received: {cause.rstrip('.')}. Next: {steps[0]}."
    )


def cause_of(error: Exception) -> str:
    """Returns the innermost cause in a Keras error, without configs and examples."""
    text = " ".join(str(error).split()).rpartition("Exception encountered: ")[2]
    return without_config(text) or type(error).__name__
