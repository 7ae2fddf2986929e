"""Changes the class of a layer in place. The config contains the original layer."""

import copy
import functools
from pathlib import Path
from typing import Any

import keras

from kerasmem.backends.patching import change_class
from kerasmem.graph.lora import note_lora_inside
from kerasmem.optional import feature
from kerasmem.types import Layer


def become(layer: Layer, form: type, block: type, name: str) -> None:
    """Changes the class of a layer in place, unless it is already a `form`.

    `block` is the registered class with the `from_config` that loads the layer.
    """
    if not isinstance(layer, form):
        # The config of the form contains the layer with its omitted arguments.
        vars(layer).pop("get_config", None)
        # No issue known: Keras 3.15 cannot replace a layer of a model.
        change_class(layer, _combined(form, type(layer), block, name))


@functools.cache
def _combined(form: type, cls: type, block: type, name: str) -> type:
    attributes: dict[str, Any] = {"__module__": block.__module__}
    if getattr(cls, "save_task_weights", None):
        attributes["save_to_preset"] = _save_to_preset
    combined_class = type(name, (form, cls), attributes)
    package, registered_name = keras.saving.get_registered_name(block).split(">")
    register = keras.saving.register_keras_serializable(package, registered_name)
    register(combined_class)
    register(block)  # so that the name refers to this class
    return combined_class


def _save_to_preset(
    self: Any, preset_dir: str | Path, max_shard_size: float | None = None
) -> None:
    """Saves the task as a KerasHub preset, with all weights in one file."""
    del max_shard_size
    feature("save_preset")(self, preset_dir)


def layer_before(config: dict[str, Any]) -> Any:
    """Returns the original layer from the config of a changed layer.

    `config` has `"layer"`, `"name"`, `"trainable"` and the output of `lora_inside`.
    """
    # Copied, because some layers change their config while reading.
    layer = keras.saving.deserialize_keras_object(copy.deepcopy(config["layer"]))
    layer.name = config["name"]
    if layer.trainable != config["trainable"]:  # the setter also changes sublayers
        layer.trainable = config["trainable"]
    note_lora_inside(layer, config)
    return layer
