"""Activations that mean something else in Keras 3 than under the same name before."""

from typing import Any

import keras

from kerasmem.files.legacy.tfmot import inner_activation


@keras.saving.register_keras_serializable("kerasmem")
def hard_sigmoid_of_keras_2(x: Any) -> Any:
    """Return `clip(0.2 x + 0.5, 0, 1)`; that of Keras 3 has a slope of 1/6."""
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


CHANGED = {"hard_sigmoid": hard_sigmoid_of_keras_2}


def translated(activation: Any) -> Any:
    """Return an activation of a config of Keras 2 as one of Keras 3.

    Args:
        activation: a name, or a dict with `class_name`.
    """
    activation = inner_activation(activation)
    name = activation
    if isinstance(activation, dict):
        inner = activation.get("config")
        name = inner if isinstance(inner, str) else activation.get("class_name")
    if name in CHANGED:
        return keras.saving.serialize_keras_object(CHANGED[name])
    return activation
