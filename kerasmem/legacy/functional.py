"""The graph of a model of Keras 2, called anew.

A config names a tensor that goes into a call by a reference, `[layer, call, output]`.
The first one of a call has its keyword arguments behind that; a value that is no tensor
stands in the place of `output`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import keras

from kerasmem.legacy.file import Made
from kerasmem.legacy.layers import Config, known_name, reason, refusal

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
    """Return a function that takes the arguments of one of TensorFlow, None if unknown.

    Args:
        symbol: what a `TFOpLambda` layer calls it, such as `"math.add"`.

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

    def call(x: Any, **arguments: Any) -> Any:
        given = {_ARGUMENTS.get(k, k): _tuple(v) for k, v in _told(arguments).items()}
        return getattr(keras.ops, name)(x, **{**_DEFAULTS.get(name, {}), **given})

    return call


def _told(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        k: v
        for k, v in arguments.items()
        if v is not None and k not in _OF_TENSORFLOW_ONLY
    }


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _matmul(a: Any, b: Any, **transposed: Any) -> Any:
    if unknown := set(_told(transposed)) - {"transpose_a", "transpose_b"}:
        unknown = {k for k in unknown if transposed[k]}
        if unknown:
            raise ValueError(f"unknown arguments {sorted(unknown)}")
    swap = keras.ops.swapaxes
    a = swap(a, -1, -2) if transposed.get("transpose_a") else a
    b = swap(b, -1, -2) if transposed.get("transpose_b") else b
    return keras.ops.matmul(a, b)


def _item(x: Any, slice_spec: Any, **_: Any) -> Any:
    return x[_index(slice_spec)]


def _index(spec: Any) -> Any:
    if isinstance(spec, list):
        return tuple(_index(part) for part in spec)
    if isinstance(spec, dict):
        if "start" not in spec:
            return ...
        return slice(spec["start"], spec["stop"], spec["step"])
    return spec


_OWN: dict[str, Callable[..., Any]] = {
    "__operators__.getitem": _item,
    "linalg.matmul": _matmul,
    "identity": lambda x, **_: x,
}


_CONSTANT = "_CONSTANT_VALUE"

_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)
"""What Keras 2 calls on a list: the sequence, and the states to begin with."""
_OPERATORS = ("TFOpLambda", "SlicingOpLambda")


def is_operator(stored: Config) -> bool:
    """Return True for a function of TensorFlow, such as `a + b`."""
    return stored["class_name"] in _OPERATORS


class Functional:
    """The calls of a graph, made one after another as their inputs come to be.

    Args:
        stored: the model in the file.
        layers: what was made of its layers, by name.
    """

    def __init__(self, stored: Config, layers: dict[str, Made]) -> None:
        self._stored = stored
        self._layers = layers
        self._outputs: dict[str, list[Any]] = {name: [] for name in self._layers}

    def model(self) -> Any:
        """Return the model.

        Raises:
            ModelFileError: if a call cannot be made; its layer is named.
        """
        config = self._stored["config"]
        waiting = {
            layer["name"]: list(layer["inbound_nodes"]) for layer in config["layers"]
        }
        for name, made in self._layers.items():
            if isinstance(made.layer, keras.layers.InputLayer):
                self._outputs[name].append(made.layer.output)
        while any(waiting.values()):
            advanced = [self._advance(*layer) for layer in waiting.items()]
            if not any(advanced):
                names = sorted(name for name, nodes in waiting.items() if nodes)
                raise refusal(self._stored, f"what goes into {names[0]!r} is missing")
        return keras.Model(
            _unpacked(self._tensors(config["input_layers"])),
            _unpacked(self._tensors(config["output_layers"])),
            name=known_name(config["name"]),
        )

    def _advance(self, name: str, nodes: list[Any]) -> bool:
        """Make the calls of a layer that can be made; say whether there was one."""
        before = len(nodes)
        while nodes and all(self._is_there(r) for r in _references(nodes[0])):
            self._outputs[name].append(self._call(name, nodes.pop(0)))
        return len(nodes) < before

    def _is_there(self, reference: Any) -> bool:
        return self._call_number(reference) < len(self._outputs[reference[0]])

    def _call_number(self, reference: Any) -> int:
        # Keras 2 counts the call in which a model was made as the first one.
        return reference[1] - bool(self._layers[reference[0]].layers)

    def _call(self, name: str, node: Any) -> Any:
        made = self._layers[name]
        x, arguments = self._tensors(_without_arguments(node)), _keyword_arguments(node)
        arguments = {k: self._tensors(v) for k, v in arguments.items()}
        if is_operator(made.stored):
            return _operate(made.stored, x, arguments)
        x = _unpacked(x)
        if made.layer is None:
            return x
        if isinstance(x, list) and isinstance(made.layer, _RECURRENT):
            x, *states = x
            arguments["initial_state"] = _unpacked(states)
        told = {k: v for k, v in arguments.items() if v is not None}
        try:
            return made.layer(x, **told)
        except Exception as error:
            raise refusal(made.stored, f"its call fails: {reason(error)}") from error

    def _tensors(self, structure: Any) -> Any:
        """Return a structure with tensors in the place of references to them."""
        if _is_reference(structure):
            if structure[0] == _CONSTANT:
                return structure[2]
            made = self._outputs[structure[0]][self._call_number(structure)]
            return keras.tree.flatten(made)[structure[2]]
        if isinstance(structure, list):
            return [self._tensors(value) for value in structure]
        if isinstance(structure, dict):
            return {key: self._tensors(value) for key, value in structure.items()}
        return structure


def _unpacked(tensors: Any) -> Any:
    """Return a list, or the one thing in it: Keras 2 does not tell them apart."""
    is_one = isinstance(tensors, list) and len(tensors) == 1
    return tensors[0] if is_one else tensors


def _operate(stored: Config, x: Any, arguments: dict[str, Any]) -> Any:
    symbol = stored["config"].get("function", "__operators__.getitem")
    function = operator(symbol)
    if function is None:
        raise refusal(stored, f"tf.{symbol} has no counterpart here")
    try:
        outputs = function(x, **arguments)
    except Exception as error:
        raise refusal(stored, f"tf.{symbol} fails: {reason(error)}") from error
    if outputs is not x:
        # Keras names operations anew in every process, and layers may have the name.
        operation = keras.tree.flatten(outputs)[0]._keras_history.operation
        operation.name = re.sub(r"[._/]+", "_", stored["config"]["name"])
    return outputs


def _is_reference(value: Any) -> bool:
    """Return True for the name of a layer with the numbers of a call and an output."""
    if not (isinstance(value, list) and len(value) in (3, 4)):
        return False
    name, call, output = value[:3]
    is_place = isinstance(call, int) and isinstance(output, int)
    return name == _CONSTANT or (isinstance(name, str) and is_place)


def _references(structure: Any) -> Iterator[Any]:
    """Yield all references to tensors, in keyword arguments too."""
    if _is_reference(structure):
        if structure[0] != _CONSTANT:
            yield structure
        structure = structure[3:]
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, list):
        for value in structure:
            yield from _references(value)


def _keyword_arguments(node: Any) -> dict[str, Any]:
    """Return the keyword arguments, which stand behind the first tensor."""
    while isinstance(node, dict) or (node and isinstance(node[0], list)):
        node = next(iter(node.values())) if isinstance(node, dict) else node[0]
    return node[3] if len(node) > 3 else {}


def _without_arguments(node: Any) -> Any:
    """Return what goes in first, without the keyword arguments."""
    if isinstance(node, dict):
        return {key: _without_arguments(value) for key, value in node.items()}
    if node and isinstance(node[0], list):
        return [_without_arguments(value) for value in node]
    return node[:3]
