"""Configs of KerasHub's layers that have no `get_config`, told for a while."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import keras

_OF_ANY_LAYER = ("name", "trainable", "dtype", "activity_regularizer")
"""Arguments that `keras.layers.Layer.get_config` tells."""

_KINDS = (str, int, float, keras.initializers.Initializer, FunctionType)
"""Kinds of arguments that a config tells, alone or in lists and tuples."""


@contextmanager
def full_configs(layers: Iterable[Any]) -> Iterator[None]:
    """Return a scope in which Keras finds the config of layers without `get_config`.

    Keras notes what such a layer was made of where that is numbers and texts alone,
    and refuses to save a model that calls another, such as `RMSNormalization` of a
    task that was made of a file, which was given a policy. What is saved in the scope
    is loaded anywhere. A layer tells its arguments if it keeps each one under its name,
    as a number, a text, None, an initializer, a function, or a list or tuple of these.
    Keras refuses another as before: in a copy it would go back to its defaults.

    Args:
        layers: those of a model, each once; afterwards they are as before.
    """
    silent = [x for x in layers if _is_silent(type(x)) and x._auto_config is None]
    told = [(layer, _arguments_of(layer)) for layer in silent]
    noted = [(layer, SimpleNamespace(config=x)) for layer, x in told if x is not None]
    try:
        for layer, config in noted:
            # Private, as Keras's constructor sets it; past what it does to attributes.
            object.__setattr__(layer, "_auto_config", config)
        yield
    finally:
        for layer, _ in noted:
            object.__setattr__(layer, "_auto_config", None)


def _is_silent(cls: type) -> bool:
    is_hub = cls.__module__.startswith("keras_hub.")
    return is_hub and cls.get_config is keras.layers.Layer.get_config


def _arguments_of(layer: Any) -> dict[str, Any] | None:
    """Return what a layer was made with, None if one argument cannot be told."""
    kept = vars(layer)
    names = _parameters(type(layer))
    if not all(name in kept and _is_plain(kept[name]) for name in names):
        return None
    return {name: keras.saving.serialize_keras_object(kept[name]) for name in names}


@cache
def _parameters(cls: type) -> list[str]:
    """Return the arguments of a constructor but for those that any layer tells."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    names = [one.name for one in parameters if one.kind not in several]
    return [name for name in names if name not in _OF_ANY_LAYER]


def _is_plain(value: Any) -> bool:
    """Return whether a value can be told, and made again of what is told."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, _KINDS)
