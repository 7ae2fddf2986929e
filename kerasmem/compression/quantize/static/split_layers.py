"""Splitting of layers with several operations into one layer per operation."""

from typing import Any

import keras

from kerasmem.graph.flat_calls import Part
from kerasmem.graph.layer_table import entry_of, kind
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer

L = keras.layers

RELU = ("relu", "relu6")
"""Activations that are fused with the layer before them."""

_SEPARABLE = {1: (L.DepthwiseConv1D, L.Conv1D), 2: (L.DepthwiseConv2D, L.Conv2D)}
_OPERATIONS = {
    "ops.HardSilu": "hard_silu",
    "ops.LeakyRelu": "leaky_relu",
    "ops.Relu": "relu",
    "ops.Relu6": "relu6",
    "ops.Sigmoid": "sigmoid",
    "ops.Silu": "silu",
    "ops.Softmax": "softmax",
    "ops.Softplus": "softplus",
    "ops.Tanh": "tanh",
    "layers.Softmax": "softmax",
}
_FUNCTIONS = {
    getattr(keras.activations, name): name
    for name in (*_OPERATIONS.values(), "exponential", "hard_sigmoid")
}


def split(layer: Layer) -> list[Part] | None:
    """Return the layers that compute the same as one layer. None if it stays whole.

    An activation other than ReLU becomes a layer after its convolution or Dense. A
    separable convolution becomes two convolutions. Weights are copied.
    """
    entry = entry_of(layer)
    if entry.kernel == "separable":
        return _separable(layer)
    if entry.kernel is None or entry.integer is None:
        return None
    if activation_of(layer) in (None, *RELU):
        return None
    linear = ("/linear", _without_activation(layer), (-1,))
    return [linear, ("", _activation(layer), (-1,))]


def activation_of(layer: Layer) -> str | None:
    """Return the activation name of a layer or operation. None if it is linear.

    Returns `"other"` for activations without int8 support.
    """
    function = getattr(layer, "activation", None)
    if isinstance(layer, L.ReLU):
        plain = not layer.negative_slope and not layer.threshold
        names = {None: "relu", 6.0: "relu6"}
        return names.get(layer.max_value, "other") if plain else "other"
    operation = kind(layer) or ""
    if operation in _OPERATIONS:
        return _OPERATIONS[operation]
    if function is None or function is keras.activations.linear:
        return None
    if isinstance(function, L.ReLU):
        return activation_of(function)
    return _FUNCTIONS.get(function, "other")


def _without_activation(layer: Layer) -> Any:
    linear = type(layer).from_config({**layer.get_config(), "activation": None})
    linear.build(layer._build_shapes_dict["input_shape"])
    for new, old in zip(linear.weights, layer.weights, strict=True):
        new.assign(to_numpy(old))
    return linear


def _activation(layer: Layer) -> Any:
    function = layer.activation
    if isinstance(function, L.Layer):
        return function
    return L.Activation(function, name=layer.name, dtype=layer.dtype_policy)


def _separable(layer: Layer) -> list[Part]:
    config, kinds = layer.get_config(), _SEPARABLE[layer.rank]
    common = ("data_format", "dtype")
    windows = ("kernel_size", "strides", "padding", "dilation_rate", "depth_multiplier")
    arguments = {name: config[name] for name in (*windows, *common)}
    first = kinds[0](use_bias=False, **arguments)
    arguments = {name: config[name] for name in ("filters", "use_bias", *common)}
    second = kinds[1](kernel_size=1, activation=layer.activation, **arguments)
    shape = layer._build_shapes_dict["input_shape"]
    first.build(shape)
    second.build(first.compute_output_shape(shape))
    new_weights = [*first.weights, *second.weights]
    for new, old in zip(new_weights, layer.weights, strict=True):
        new.assign(to_numpy(old))
    after = split(second) or [("", second, (-1,))]
    return [("/depthwise", first, (-1,)), *after]
