"""A layer that becomes one of another class in place, and is saved as that.

Its config holds the serialized form of the layer that it was.
"""

import copy
import functools
from typing import Any

import keras

from kerasmem.backends.patching import change_class
from kerasmem.graph.lora import note_lora_inside
from kerasmem.types import Layer


def become(layer: Layer, form: type, block: type, name: str) -> None:
    """Change the class of a layer in place, unless it is a `form` already.

    Args:
        layer: The layer.
        form: The class whose methods replace those of the layer's class.
        block: The registered class whose `from_config` loads the layer.
        name: Name of the new class.
    """
    if not isinstance(layer, form):
        # No issue known: a model of Keras 3.15 takes no other layer in place of one.
        change_class(layer, _combined(form, type(layer), block, name))


@functools.cache
def _combined(form: type, cls: type, block: type, name: str) -> type:
    combined_class = type(name, (form, cls), {"__module__": block.__module__})
    package, registered_name = keras.saving.get_registered_name(block).split(">")
    register = keras.saving.register_keras_serializable(package, registered_name)
    register(combined_class)
    register(block)  # which the name has to lead to
    return combined_class


def layer_before(config: dict[str, Any]) -> Any:
    """Return the layer that one of another class was made of, from its config.

    Args:
        config: with `"layer"`, `"name"`, `"trainable"` and what `lora_inside` told.
    """
    # Some layers take their config apart while they read it.
    layer = keras.saving.deserialize_keras_object(copy.deepcopy(config["layer"]))
    layer.name = config["name"]
    if layer.trainable != config["trainable"]:  # it would reach the inner layers
        layer.trainable = config["trainable"]
    note_lora_inside(layer, config)
    return layer
