"""Layers that do several things, taken apart into layers that do one each."""

from typing import Any

import keras

from kerasmem.compression.quantize.static.base import RELU
from kerasmem.graph.flat_calls import Part
from kerasmem.graph.layer_table import entry_of, kind
from kerasmem.graph.values import to_numpy

L = keras.layers

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


@keras.saving.register_keras_serializable("kerasmem")
class Gate(L.Layer):
    """The product of a tensor and its sigmoid, also where a mask hides them."""

    def call(self, inputs: Any) -> Any:
        """Return the product of a list of two tensors."""
        # Not `*`: an operation has no precision of its own to cast both of them to.
        return keras.ops.multiply(*inputs)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Return the mask that both have."""
        del inputs
        return previous_mask[0] if self.supports_masking else None


def split(layer: Any) -> list[Part] | None:
    """Return the layers that compute what one does, None for one that stays whole.

    A convolution or Dense with an activation other than ReLU becomes one without and
    the activation; a separable convolution its two convolutions; SiLU the product of
    its input and a sigmoid of it. New layers have copies of the weights.
    """
    entry = entry_of(layer)
    if entry.kernel == "separable":
        return _separable(layer)
    if entry.channels == "activation" or entry.name == "ops.Silu":
        return _silu(layer) if activation_of(layer) == "silu" else None
    if entry.kernel is None or entry.integer is None:
        return None
    if activation_of(layer) in (None, *RELU):
        return None
    linear = ("/linear", _without_activation(layer), (-1,))
    if activation_of(layer) == "silu":
        return [linear, *_silu(layer)]
    return [linear, ("", _activation(layer), (-1,))]


def activation_of(layer: Any) -> str | None:
    """Return the name of the activation of a layer or operation, None for a linear one.

    `"other"` is one that has no name that matters here.
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


def _without_activation(layer: Any) -> Any:
    made = type(layer).from_config({**layer.get_config(), "activation": None})
    made.build(layer._build_shapes_dict["input_shape"])
    for new, old in zip(made.weights, layer.weights, strict=True):
        new.assign(to_numpy(old))
    return made


def _activation(layer: Any) -> Any:
    function = layer.activation
    if isinstance(function, L.Layer):
        return function
    return L.Activation(function, name=layer.name, dtype=layer.dtype_policy)


def _silu(layer: Any) -> list[Part]:
    policy = {"dtype": layer.dtype_policy} if isinstance(layer, L.Layer) else {}
    sigmoid = L.Activation("sigmoid", name=f"{layer.name}_sigmoid", **policy)
    both = Gate(name=layer.name, **policy)
    both.supports_masking = getattr(layer, "supports_masking", False)
    return [("/sigmoid", sigmoid, (-1,)), ("", both, (-2, -1))]


def _separable(layer: Any) -> list[Part]:
    config, kinds = layer.get_config(), _SEPARABLE[layer.rank]
    shared = ("data_format", "dtype")
    windows = ("kernel_size", "strides", "padding", "dilation_rate", "depth_multiplier")
    arguments = {name: config[name] for name in (*windows, *shared)}
    first = kinds[0](use_bias=False, **arguments)
    arguments = {name: config[name] for name in ("filters", "use_bias", *shared)}
    second = kinds[1](kernel_size=1, activation=layer.activation, **arguments)
    shape = layer._build_shapes_dict["input_shape"]
    first.build(shape)
    second.build(first.compute_output_shape(shape))
    new_weights = [*first.weights, *second.weights]
    for new, old in zip(new_weights, layer.weights, strict=True):
        new.assign(to_numpy(old))
    after = split(second) or [("", second, (-1,))]
    return [("/depthwise", first, (-1,)), *after]
