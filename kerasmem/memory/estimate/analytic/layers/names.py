"""Names of classes that one function stands for, and of activations."""

from typing import Any

ACTIVATIONS = (
    *["Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Relu", "Relu6", "Silu"],
    *["Swish", "Gelu", "Sigmoid", "Tanh", "Elu", "Selu", "LogSoftmax", "HardSilu"],
    *["HardSwish", "HardSigmoid", "Softplus", "Softsign", "Exp", "LeakyRelu"],
    *["Square", "Sqrt", "Log", "Absolute", "Sin", "Cos", "Power"],
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
    name = getattr(function, "__name__", None) or type(function).__name__.lower()
    return _SAME.get(name, name)
