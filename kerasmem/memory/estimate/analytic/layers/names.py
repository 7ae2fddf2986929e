"""Names of classes that one function stands for, and of activations."""

from typing import Any

import keras

from kerasmem.graph.layer_table import class_names

ACTIVATIONS = class_names("activation")
CONVOLUTIONS = class_names("convolution")
TRANSPOSED = class_names("transposed_convolution")
MAX_POOLING = class_names("max_pooling")
AVERAGE_POOLING = class_names("average_pooling")
DROPOUTS = class_names("dropout")

_SAME = {
    "leakyrelu": "leaky_relu",
    "logsoftmax": "log_softmax",
    "hardsilu": "hard_silu",
    "hardswish": "hard_silu",
    "hard_swish": "hard_silu",
    "hardsigmoid": "hard_sigmoid",
    "swish": "silu",
}


def activation_name(function: Any) -> str:
    """Return the name of an activation: a function, a layer, or None for linear."""
    if function is None:
        return "linear"
    name = getattr(function, "__name__", None)
    if name is None:
        name = type(function).__name__.lower()
        if name == "gelu" and getattr(function, "approximate", True):
            return "gelu_approximate"
    elif name not in vars(keras.activations):
        return _of_operation(function, name)
    return _SAME.get(name, name)


def _of_operation(function: Any, name: str) -> str:
    """Return the name of the one operation that a function of one's own is."""
    x = keras.Input((1,))
    try:
        y = function(x)
    except Exception:  # noqa: BLE001 - a user's function may raise anything on symbols
        return name
    if not isinstance(y, keras.KerasTensor):
        return name
    operation = y._keras_history.operation
    taken = operation._inbound_nodes[-1].input_tensors
    is_all = len(taken) == 1 and taken[0] is x
    return activation_name(operation) if is_all else name
