"""Names of classes that one function stands for, and of activations."""

from typing import Any

import keras

ACTIVATIONS = (
    *["Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Relu", "Relu6", "Silu"],
    *["Swish", "Gelu", "Sigmoid", "Tanh", "Elu", "Selu", "LogSoftmax", "HardSilu"],
    *["HardSwish", "HardSigmoid", "Softplus", "Softsign", "Exp", "LeakyRelu"],
    *["Square", "Sqrt", "Rsqrt", "Log", "Absolute", "Sin", "Cos", "Power"],
)
CONVOLUTIONS = ("Conv1D", "Conv2D", "Conv3D")
TRANSPOSED = tuple(f"{name}Transpose" for name in CONVOLUTIONS)
MAX_POOLING = ("MaxPooling1D", "MaxPooling2D", "MaxPooling3D")
AVERAGE_POOLING = ("AveragePooling1D", "AveragePooling2D", "AveragePooling3D")
DROPOUTS = (
    *["Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"],
    *["GaussianDropout", "AlphaDropout"],
)

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
