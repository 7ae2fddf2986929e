"""Functions of TensorFlow in a graph of Keras 2, as operations of Keras 3."""

from collections.abc import Callable
from typing import Any

import keras

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
        explicit = {
            _ARGUMENTS.get(k, k): _tuple(v) for k, v in _explicit(arguments).items()
        }
        return getattr(keras.ops, name)(x, **{**_DEFAULTS.get(name, {}), **explicit})

    return call


def _explicit(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        k: v
        for k, v in arguments.items()
        if v is not None and k not in _OF_TENSORFLOW_ONLY
    }


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _matmul(a: Any, b: Any, **transposed: Any) -> Any:
    if unknown := set(_explicit(transposed)) - {"transpose_a", "transpose_b"}:
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
