"""A model of Keras 2, made anew of Keras 3's layers from its config."""

from collections.abc import Mapping
from typing import Any

import keras

from kerasmem.errors import ModelFileError
from kerasmem.legacy.file import Made
from kerasmem.legacy.functional import Functional, is_operator
from kerasmem.legacy.layers import (
    Config,
    is_graph,
    known_name,
    make_layer,
    refusal,
)
from kerasmem.legacy.tfmot import inner_layer, is_quantizer


def make(stored: Config, custom_objects: Mapping[str, Any]) -> Made:
    """Return the Keras 3 layer or model that a file of Keras 2 tells of.

    Raises:
        ModelFileError: if there is no such layer; it is named, with the reason.
    """
    if is_operator(stored) or is_quantizer(stored):
        return Made(stored, None)
    if not is_graph(stored):
        layer = _with_models_made(inner_layer(stored), custom_objects)
        return Made(stored, make_layer(layer, custom_objects))
    try:
        if "output_layers" in stored["config"]:
            return _functional(stored, custom_objects)
        return _sequential(stored, custom_objects)
    except (KeyError, IndexError, TypeError) as error:
        raise refusal(stored, f"its config is damaged ({error!r})") from error


def _with_models_made(stored: Config, custom_objects: Mapping[str, Any]) -> Config:
    """Return the config of a layer, a model within it written as Keras 3 does."""
    inner = stored["config"].get("layer")
    if not (isinstance(inner, dict) and is_graph(inner)):
        return stored
    model = keras.saving.serialize_keras_object(make(inner, custom_objects).layer)
    return {**stored, "config": {**stored["config"], "layer": model}}


def _functional(stored: Config, custom_objects: Mapping[str, Any]) -> Made:
    config = stored["config"]
    layers = {layer["name"]: make(layer, custom_objects) for layer in config["layers"]}
    model = Functional(stored, layers).model()
    _set_trainable(model, config)
    return Made(stored, model, list(layers.values()))


def _sequential(stored: Config, custom_objects: Mapping[str, Any]) -> Made:
    config = stored["config"]
    for layer in config["layers"]:
        if is_operator(layer):
            raise refusal(layer, "it is a function of TensorFlow in a Sequential")
    layers = [make(layer, custom_objects) for layer in config["layers"]]
    own = [made.layer for made in layers if made.layer is not None]
    if not (own and isinstance(own[0], keras.layers.InputLayer)):
        own.insert(0, keras.Input(batch_shape=_input_shape(stored)))
    model = keras.Sequential(own, name=known_name(config["name"]))
    _set_trainable(model, config)
    # As `model.layers` does, the file counts them without the input.
    listed = [m for m in layers if not isinstance(m.layer, keras.layers.InputLayer)]
    return Made(stored, model, listed)


def _input_shape(stored: Config) -> tuple[int | None, ...]:
    config = stored["config"]
    first = inner_layer(config["layers"][0])["config"] if config["layers"] else {}
    shape = (
        first.get("batch_input_shape")
        or config.get("build_input_shape")
        or stored.get("build_config", {}).get("input_shape")
    )
    if shape is None:
        raise refusal(stored, "it was saved before it was built, without weights")
    return tuple(shape)


def _set_trainable(model: Any, config: Config) -> None:
    # Set to True, it would thaw the layers within.
    if config.get("trainable") is False:
        model.trainable = False


def check_is_model(made: Made) -> None:
    """Raise unless a model was made, rather than a layer.

    Raises:
        ModelFileError: if there is none.
    """
    if not isinstance(made.layer, keras.Model):
        raise ModelFileError("There is no model in the file.")
