"""The arguments of a layer of Keras 2 that mean something in Keras 3."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from kerasmem.files.keras_2 import hard_sigmoid_of_keras_2
from kerasmem.legacy.tfmot import inner_activation

Config = dict[str, Any]

_CHANGED = {"hard_sigmoid": hard_sigmoid_of_keras_2}
"""Activations that mean something else in Keras 3 than under the same name before."""

_OF_EVERY_LAYER = ("name", "trainable", "dtype", "activity_regularizer")
_HARMLESS: Mapping[str, Any] = {
    "groups": 1,
    "time_major": False,
    "ragged": False,
    "sparse": False,
    "renorm": False,
}
"""What Keras 3 lacks is left out where it says this, None or False."""
_WITHOUT_EFFECT = {
    "batch_input_shape",
    "build_input_shape",
    "implementation",
    "input_dim",
    "input_length",
    "fused",
    "autocast",
    "experimental_autocast",
    "shared_object_id",
    "query_shape",
    "rng_type",
    "key_shape",
    "value_shape",
    "vocabulary_size",
    "trainable",
}
_WITHOUT_EFFECT_ENDINGS = ("_initializer", "_regularizer", "_constraint")


def accepted(made: type, config: Config) -> Config:
    """Return the arguments that a class of Keras 3 takes, in its meaning.

    Args:
        made: the class of the layer.
        config: of Keras 2.

    Raises:
        ValueError: if one of the others is more than its default.
    """
    if config.get("vocabulary_size") and config.get("vocabulary") is None:
        raise ValueError(
            "its vocabulary, which adapt learned, is not in its config. Next: give it "
            "to the layer as vocabulary= where tf_keras is, and save the model anew"
        )
    known = _parameters(made)
    for key, value in config.items():
        if key not in known and not _is_without_effect(key, value):
            raise ValueError(f"Keras 3 has no {key}={value!r} there")
    return {k: _value(made, k, v) for k, v in config.items() if k in known}


def _is_without_effect(key: str, value: Any) -> bool:
    if key in _WITHOUT_EFFECT or key.endswith(_WITHOUT_EFFECT_ENDINGS):
        return True
    return (
        value is None
        or value is False
        or (key in _HARMLESS and value == _HARMLESS[key])
    )


def _value(made: type, key: str, value: Any) -> Any:
    if key.endswith("activation"):
        return _translated(value)
    if key == "axis" and made is keras.layers.BatchNormalization:
        axes = value if isinstance(value, list) else [value]
        if len(axes) > 1:
            raise ValueError(f"Keras 3 normalizes one axis. Received: {axes}")
        return axes[0]
    return value


def _translated(activation: Any) -> Any:
    """Return an activation of a config of Keras 2 as one of Keras 3.

    Args:
        activation: a name, or a dict with `class_name`.
    """
    activation = inner_activation(activation)
    name = activation
    if isinstance(activation, dict):
        inner = activation.get("config")
        name = inner if isinstance(inner, str) else activation.get("class_name")
    if name in _CHANGED:
        return keras.saving.serialize_keras_object(_CHANGED[name])
    return activation


def _parameters(made: type) -> set[str]:
    """Return what a layer's `__init__` takes, those that it hands on included."""
    names = set()
    for base in inspect.getmro(made):
        if base is keras.Layer:
            return names | set(_OF_EVERY_LAYER)
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            names |= set(parameters) - {"self", "kwargs"}
            if "kwargs" not in parameters:
                break
    return names
