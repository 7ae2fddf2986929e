"""Builds a Keras 3 model from the config of a Keras 2 model.

A config refers to a tensor as `[layer, call, output]`. The first reference of a call is
followed by its keyword arguments. A value that is not a tensor replaces `output`.
"""

import re
from collections.abc import Mapping
from typing import Any

import keras

from kerasmem.extras.legacy.file import ConvertedLayer, inner_layer, is_quantizer
from kerasmem.extras.legacy.layers import (
    Config,
    is_graph,
    known_name,
    make_layer,
    operator,
    reason,
    refusal,
)
from kerasmem.graph.layers import node_of
from kerasmem.types import Model, Tensor

_CONSTANT = "_CONSTANT_VALUE"

_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)
"""Layers that Keras 2 calls on a list of sequence and initial states."""
_OPERATORS = ("TFOpLambda", "SlicingOpLambda")


def is_operator(stored: Config) -> bool:
    """Return whether the layer is a TensorFlow function, such as `a + b`."""
    return stored["class_name"] in _OPERATORS


def make(stored: Config, custom_objects: Mapping[str, Any]) -> ConvertedLayer:
    """Create the Keras 3 layer or model of a Keras 2 config.

    Raises:
        ModelFileError: If there is no such layer, with its name and the reason.
    """
    if is_operator(stored) or is_quantizer(stored):
        return ConvertedLayer(stored, None)
    if not is_graph(stored):
        layer = _with_models_made(inner_layer(stored), custom_objects)
        return ConvertedLayer(stored, make_layer(layer, custom_objects))
    try:
        if "output_layers" in stored["config"]:
            return _functional(stored, custom_objects)
        return _sequential(stored, custom_objects)
    except (KeyError, IndexError, TypeError) as error:
        raise refusal(stored, f"its config is damaged ({error!r})") from error


def _with_models_made(stored: Config, custom_objects: Mapping[str, Any]) -> Config:
    inner = stored["config"].get("layer")
    if not (isinstance(inner, dict) and is_graph(inner)):
        return stored
    model = keras.saving.serialize_keras_object(make(inner, custom_objects).layer)
    return {**stored, "config": {**stored["config"], "layer": model}}


def _functional(stored: Config, custom_objects: Mapping[str, Any]) -> ConvertedLayer:
    config = stored["config"]
    layers = {layer["name"]: make(layer, custom_objects) for layer in config["layers"]}
    model = Functional(stored, layers).model()
    _set_trainable(model, config)
    return ConvertedLayer(stored, model, list(layers.values()))


def _sequential(stored: Config, custom_objects: Mapping[str, Any]) -> ConvertedLayer:
    config = stored["config"]
    for layer in config["layers"]:
        if is_operator(layer):
            raise refusal(layer, "TensorFlow functions are invalid in a Sequential")
    layers = [make(layer, custom_objects) for layer in config["layers"]]
    own = [inner.layer for inner in layers if inner.layer is not None]
    if not (own and isinstance(own[0], keras.layers.InputLayer)):
        own.insert(0, keras.Input(batch_shape=_input_shape(stored)))
    model = keras.Sequential(own, name=known_name(config["name"]))
    _set_trainable(model, config)
    # The file counts layers like `model.layers`, without the input.
    counted_layers = [
        m for m in layers if not isinstance(m.layer, keras.layers.InputLayer)
    ]
    return ConvertedLayer(stored, model, counted_layers)


def _input_shape(stored: Config) -> tuple[int | None, ...]:
    config = stored["config"]
    first = inner_layer(config["layers"][0])["config"] if config["layers"] else {}
    shape = (
        first.get("batch_input_shape")
        or config.get("build_input_shape")
        or stored.get("build_config", {}).get("input_shape")
    )
    if shape is None:
        raise refusal(stored, "the model was not built and has no weights")
    return tuple(shape)


def _set_trainable(model: Model, config: Config) -> None:
    # Setting True would unfreeze nested layers.
    if config.get("trainable") is False:
        model.trainable = False


class Functional:
    """Builds a functional model by calling layers as soon as their inputs exist."""

    def __init__(self, stored: Config, layers: dict[str, ConvertedLayer]) -> None:
        self._stored = stored
        self._layers = layers
        self._outputs: dict[str, list[Any]] = {name: [] for name in self._layers}

    def model(self) -> Any:
        """Build the model.

        Raises:
            ModelFileError: If a call fails, with the name of its layer.
        """
        config = self._stored["config"]
        waiting = {
            layer["name"]: list(layer["inbound_nodes"]) for layer in config["layers"]
        }
        for name, inner in self._layers.items():
            if isinstance(inner.layer, keras.layers.InputLayer):
                self._outputs[name].append(inner.layer.output)
        while any(waiting.values()):
            has_advanced = [self._advance(*layer) for layer in waiting.items()]
            if not any(has_advanced):
                names = sorted(name for name, nodes in waiting.items() if nodes)
                raise refusal(self._stored, f"the inputs of {names[0]!r} are missing")
        return keras.Model(
            _unpacked(self._tensors(config["input_layers"])),
            _unpacked(self._tensors(config["output_layers"])),
            name=known_name(config["name"]),
        )

    def _advance(self, name: str, nodes: list[Any]) -> bool:
        before = len(nodes)
        while nodes:
            try:
                x = self._tensors(_without_arguments(nodes[0]))
                arguments = self._tensors(_keyword_arguments(nodes[0]))
            except IndexError:  # an input is not computed yet
                break
            self._outputs[name].append(_called(self._layers[name], x, arguments))
            del nodes[0]
        return len(nodes) < before

    def _call_number(self, reference: Any) -> int:
        # Keras 2 counts the creation of a nested model as its first call.
        return reference[1] - bool(self._layers[reference[0]].layers)

    def _tensors(self, structure: Any) -> Any:
        if _is_reference(structure):
            if structure[0] == _CONSTANT:
                return structure[2]
            outputs = self._outputs[structure[0]][self._call_number(structure)]
            return keras.tree.flatten(outputs)[structure[2]]
        if isinstance(structure, list):
            return [self._tensors(value) for value in structure]
        if isinstance(structure, dict):
            return {key: self._tensors(value) for key, value in structure.items()}
        return structure


def _called(converted: ConvertedLayer, x: Tensor, arguments: dict[str, Any]) -> Any:
    if is_operator(converted.stored):
        return _operate(converted.stored, x, arguments)
    x = _unpacked(x)
    if converted.layer is None:
        return x
    if isinstance(x, list) and isinstance(converted.layer, _RECURRENT):
        x, *states = x
        arguments["initial_state"] = _unpacked(states)
    options = {k: v for k, v in arguments.items() if v is not None}
    try:
        return converted.layer(x, **options)
    except Exception as error:
        raise refusal(converted.stored, f"its call failed: {reason(error)}") from error


def _unpacked(tensors: Any) -> Any:
    is_one = isinstance(tensors, list) and len(tensors) == 1
    return tensors[0] if is_one else tensors


def _operate(stored: Config, x: Tensor, arguments: dict[str, Any]) -> Any:
    symbol = stored["config"].get("function", "__operators__.getitem")
    function = operator(symbol)
    if function is None:
        raise refusal(stored, f"tf.{symbol} has no equivalent in Keras 3")
    try:
        outputs = function(x, **arguments)
    except Exception as error:
        raise refusal(stored, f"tf.{symbol} failed: {reason(error)}") from error
    if outputs is not x:
        # Keras numbers operations per process, so the name may be the name of a layer.
        operation = node_of(keras.tree.flatten(outputs)[0]).operation
        operation.name = re.sub(r"[._/]+", "_", stored["config"]["name"])
    return outputs


def _is_reference(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) in (3, 4)):
        return False
    name, call, output = value[:3]
    is_place = isinstance(call, int) and isinstance(output, int)
    return name == _CONSTANT or (isinstance(name, str) and is_place)


def _keyword_arguments(node: Any) -> dict[str, Any]:
    while isinstance(node, dict) or (node and isinstance(node[0], list)):
        node = next(iter(node.values())) if isinstance(node, dict) else node[0]
    return node[3] if len(node) > 3 else {}


def _without_arguments(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_arguments(value) for key, value in node.items()}
    if node and isinstance(node[0], list):
        return [_without_arguments(value) for value in node]
    return node[:3]
