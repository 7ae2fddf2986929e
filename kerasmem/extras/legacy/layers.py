"""Translates the config of a Keras 2 layer to Keras 3."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras

from kerasmem.errors import ModelFileError
from kerasmem.extras.legacy.file import inner_activation
from kerasmem.files.load import hard_sigmoid_of_keras_2
from kerasmem.types import Tensor

_ONE = (
    "math.abs math.ceil math.cos math.erf math.exp math.floor math.log math.log1p "
    "math.negative math.reciprocal math.round math.rsqrt math.sigmoid math.sign "
    "math.sin math.softplus math.sqrt math.square math.tanh nn.elu nn.relu nn.relu6 "
    "nn.selu nn.sigmoid nn.silu nn.softplus nn.tanh ones_like zeros_like "
    "stop_gradient concat stack cast expand_dims squeeze repeat "
    "nn.softmax nn.log_softmax"
)
_TWO = (
    "math.add math.divide math.equal math.greater math.greater_equal math.less "
    "math.less_equal math.maximum math.minimum math.multiply math.subtract math.truediv"
)
_SUMS = "max mean min prod std sum"

_NAMES = {
    **{symbol: symbol.rpartition(".")[2] for symbol in f"{_ONE} {_TWO}".split()},
    **{f"math.reduce_{name}": name for name in _SUMS.split()},
    "__operators__.add": "add",
    "clip_by_value": "clip",
    "concat": "concatenate",
    "math.floordiv": "floor_divide",
    "math.pow": "power",
    "math.reduce_variance": "var",
    "math.truediv": "true_divide",
    "nn.gelu": "gelu",
    "nn.leaky_relu": "leaky_relu",
    "nn.swish": "silu",
    "reshape": "reshape",
    "tile": "tile",
    "transpose": "transpose",
}
_ARGUMENTS = {
    "clip_value_max": "x_max",
    "clip_value_min": "x_min",
    "alpha": "negative_slope",
    "multiples": "repeats",
    "perm": "axes",
    "shape": "newshape",
    "y": "x2",
}
_DEFAULTS = {
    "gelu": {"approximate": False},
    "concatenate": {"axis": 0},
}
_OF_TENSORFLOW_ONLY = ("name", "conjugate")


def operator(symbol: str) -> Callable[..., Any] | None:
    """Return a function with the arguments of a TensorFlow function, or None.

    `symbol` is the name in a `TFOpLambda` layer, such as `"math.add"`.

    Example:
        >>> float(operator("math.add")(1.0, y=2.0, name=None))
        3.0
    """
    symbol = symbol.removeprefix("compat.v1.")
    if symbol in _OWN:
        return _OWN[symbol]
    if symbol not in _NAMES:
        return None
    name = _NAMES[symbol]

    def call(x: Tensor, **arguments: Any) -> Any:
        explicit = {
            _ARGUMENTS.get(k, k): tuple(v) if isinstance(v, list) else v
            for k, v in _explicit(arguments).items()
        }
        return getattr(keras.ops, name)(x, **{**_DEFAULTS.get(name, {}), **explicit})

    return call


def _explicit(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        k: v
        for k, v in arguments.items()
        if v is not None and k not in _OF_TENSORFLOW_ONLY
    }


def _matmul(a: Any, b: Any, **transposed: Any) -> Any:
    options = {k for k, v in _explicit(transposed).items() if v}
    if unknown := options - {"transpose_a", "transpose_b"}:
        raise ValueError(f"unknown arguments {sorted(unknown)}")
    swap = keras.ops.swapaxes
    a = swap(a, -1, -2) if transposed.get("transpose_a") else a
    b = swap(b, -1, -2) if transposed.get("transpose_b") else b
    return keras.ops.matmul(a, b)


def _index(spec: Any) -> Any:
    if isinstance(spec, list):
        return tuple(_index(part) for part in spec)
    if isinstance(spec, dict):
        if "start" not in spec:
            return ...
        return slice(spec["start"], spec["stop"], spec["step"])
    return spec


_OWN: dict[str, Callable[..., Any]] = {
    "__operators__.getitem": lambda x, slice_spec, **_: x[_index(slice_spec)],
    "linalg.matmul": _matmul,
    "identity": lambda x, **_: x,
}


Config = dict[str, Any]

_RENAMED: Mapping[str, Mapping[str, str]] = {
    "LeakyReLU": {"alpha": "negative_slope"},
    "ThresholdedReLU": {"theta": "threshold"},
    "InputLayer": {"batch_input_shape": "batch_shape"},
}
_OTHER_CLASS = {"ThresholdedReLU": "ReLU"}
_INNER = ("layer", "backward_layer", "cell")
_GRAPHS = ("Functional", "Sequential", "Model")


def is_graph(layer: Config) -> bool:
    """Return whether the config is a model with a list of layers."""
    return layer["class_name"] in _GRAPHS and "layers" in layer["config"]


def make_layer(layer: Config, custom_objects: Mapping[str, Any]) -> Any:
    """Create the Keras 3 layer for a layer in a Keras 2 file.

    Raises:
        ModelFileError: If Keras 3 has no such layer, with its name and the reason.
    """
    translation = translate(layer, custom_objects)
    try:
        return keras.saving.deserialize_keras_object(
            translation, custom_objects=dict(custom_objects), safe_mode=True
        )
    except Exception as error:
        raise refusal(layer, reason(error)) from error


def translate(layer: Config, custom_objects: Mapping[str, Any]) -> Config:
    """Translate a serialized Keras 2 layer to the Keras 3 format."""
    class_name: str = layer["class_name"]
    if class_name.rpartition(">")[2] == "Lambda":
        raise refusal(
            layer, "it contains a Python lambda, and code in a file is never run"
        )
    own = _own_class(layer, custom_objects)
    config = {key: _plain(value) for key, value in layer["config"].items()}
    if "name" in config:
        config["name"] = known_name(config["name"])
    if own is not None:
        config.pop("batch_input_shape", None)
        return _serialized(None, class_name, config, own)
    class_name = _OTHER_CLASS.get(class_name, class_name)
    layer_class = getattr(keras.layers, class_name, None)
    if not (isinstance(layer_class, type) and issubclass(layer_class, keras.Layer)):
        raise refusal(
            layer,
            f"the class {class_name!r} is unknown. Import its module with "
            "--import, or pass custom_objects= in Python",
        )
    new_names = _RENAMED.get(layer["class_name"], {})
    config = {new_names.get(key, key): value for key, value in config.items()}
    try:
        config = accepted(layer_class, config)
    except ValueError as error:
        raise refusal(layer, str(error)) from error
    return _serialized("keras.layers", class_name, _inner(config, custom_objects), None)


def _inner(config: Config, custom_objects: Mapping[str, Any]) -> Config:
    new_config = dict(config)
    for key in _INNER:
        if isinstance(config.get(key), dict) and not is_graph(config[key]):
            new_config[key] = translate(config[key], custom_objects)
    if "cells" in config:
        new_config["cells"] = [
            translate(cell, custom_objects) for cell in config["cells"]
        ]
    return new_config


def reason(error: Exception) -> str:
    """Return the cause of an error in one line."""
    text = str(error).rpartition("Exception encountered: ")[2].strip()
    return text.splitlines()[0] if text else type(error).__name__


def refusal(layer: Config, why: str) -> ModelFileError:
    """Return the error for a layer that cannot be converted."""
    return ModelFileError(
        f"The layer {layer['config'].get('name')!r} ({layer['class_name']}) cannot be "
        f"converted to Keras 3: {why.removesuffix('.')}."
    )


def _serialized(module: Any, class_name: str, config: Config, own: Any) -> Config:
    return {
        "module": module,
        "class_name": class_name,
        "config": config,
        "registered_name": own,
    }


def _own_class(layer: Config, custom_objects: Mapping[str, Any]) -> str | None:
    class_name = layer["class_name"]
    short = class_name.rpartition(">")[2]
    for name in (layer.get("registered_name"), class_name, f"Custom>{short}", short):
        if name and keras.saving.get_registered_object(name, dict(custom_objects)):
            return name
    return None


def known_name(name: str) -> str:
    """Replace slashes, which are invalid in Keras 3 names, as in "Conv/BatchNorm"."""
    return name.replace("/", "_")


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    name, config = value.get("class_name"), value.get("config")
    if name in ("Policy", "PolicyV1"):
        return value["config"]["name"]
    if value.get("type") == "ndarray" or name == "__ndarray__":
        return value.get("value", config)
    return {k: v for k, v in value.items() if k != "shared_object_id"}


_CHANGED = {"hard_sigmoid": hard_sigmoid_of_keras_2}
"""Activations whose definition changed in Keras 3 under the same name."""

_OF_EVERY_LAYER = ("name", "trainable", "dtype", "activity_regularizer")
_HARMLESS: Mapping[str, Any] = {
    "groups": 1,
    "time_major": False,
    "ragged": False,
    "sparse": False,
    "renorm": False,
}
"""Unknown arguments with these values, None or False have no effect."""
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


def accepted(layer_class: type, config: Config) -> Config:
    """Return the arguments that a Keras 3 class accepts, with translated values.

    Raises:
        ValueError: If an unsupported argument does not have its default value.
    """
    if config.get("vocabulary_size") and config.get("vocabulary") is None:
        raise ValueError(
            "its adapted vocabulary is not in its config. Next: pass vocabulary= to "
            "the layer in tf_keras, and save the model again"
        )
    parameters = _parameters(layer_class)
    for key, value in config.items():
        if key not in parameters and not _is_without_effect(key, value):
            raise ValueError(f"Keras 3 does not support {key}={value!r}")
    return {k: _value(layer_class, k, v) for k, v in config.items() if k in parameters}


def _is_without_effect(key: str, value: Any) -> bool:
    if key in _WITHOUT_EFFECT or key.endswith(_WITHOUT_EFFECT_ENDINGS):
        return True
    return (
        value is None
        or value is False
        or (key in _HARMLESS and value == _HARMLESS[key])
    )


def _value(layer_class: type, key: str, value: Any) -> Any:
    if key.endswith("activation"):
        return _translated(value)
    if key == "axis" and layer_class is keras.layers.BatchNormalization:
        axes = value if isinstance(value, list) else [value]
        if len(axes) > 1:
            raise ValueError(f"Keras 3 normalizes a single axis. Received: {axes}")
        return axes[0]
    return value


def _translated(activation: Any) -> Any:
    """Translate a Keras 2 activation, given as a name or a dict with `class_name`."""
    activation = inner_activation(activation)
    name = activation
    if isinstance(activation, dict):
        inner = activation.get("config")
        name = inner if isinstance(inner, str) else activation.get("class_name")
    if name in _CHANGED:
        return keras.saving.serialize_keras_object(_CHANGED[name])
    return activation


def _parameters(layer_class: type) -> set[str]:
    names = set()
    for base in inspect.getmro(layer_class):
        if base is keras.Layer:
            return names | set(_OF_EVERY_LAYER)
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            names |= set(parameters) - {"self", "kwargs"}
            if "kwargs" not in parameters:
                break
    return names
