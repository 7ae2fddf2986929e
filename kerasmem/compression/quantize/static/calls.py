"""The calls of one forward pass by number and name, and one run of them.

Layers that do several things can be taken apart into layers that do one each.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.compression.quantize.static.base import RELU
from kerasmem.graph.calls import Call, Walk, one_or_all
from kerasmem.graph.layer_table import entry_of, kind
from kerasmem.graph.layers import own_graph
from kerasmem.graph.values import to_numpy

Part = tuple[str, Any, tuple[int, ...]]
"""What follows a name, a layer, and what it takes: places in the list of the input and
the outputs of the parts before it."""

Split = Callable[[Any], Sequence[Part] | None]
"""Returns the layers that compute what one does."""

See = Callable[[str, Any], None]


@dataclass(frozen=True)
class Calls:
    """All calls, in order; their values are numbers of tensors.

    Args:
        calls: them.
        inputs: numbers of the model's inputs.
        outputs: numbers of its outputs.
        tensors: a `KerasTensor` for every number.
        names: a name for every number.
    """

    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tensors: tuple[Any, ...]
    names: tuple[str, ...]

    def is_float(self, number: int) -> bool:
        """Return whether a tensor is one of floats."""
        return keras.backend.is_float_dtype(self.tensors[number].dtype)

    def run(self, inputs: Sequence[Any], see: See) -> None:
        """Run the calls in inference and show every tensor as it comes.

        None is kept longer than it is needed.

        Args:
            inputs: a tensor per input, in order.
            see: is called with the name of a tensor and the tensor.
        """
        uses = Counter(number for call in self.calls for number in call.inputs)
        known = dict(zip(self.inputs, inputs, strict=True))
        for number, value in known.items():
            see(self.names[number], value)
        for call in self.calls:
            args, kwargs = call.arguments(known)
            # Outside of a model's call a layer runs in inference unless it is told
            # otherwise.
            outputs = keras.tree.flatten(call.operation(*args, **kwargs))
            for number, output in zip(call.outputs, outputs, strict=True):
                see(self.names[number], output)
                if uses[number]:
                    known[number] = output
            for number in call.inputs:
                uses[number] -= 1
                if not uses[number]:
                    known.pop(number, None)


def flatten(
    model: Any, split: Split = lambda _: None, whole: Container[str] = ()
) -> Calls:
    """Return the calls of a model with a graph.

    Each call of a shared layer has a name of its own: `"dense"`, `"dense:1"`; so has
    each further output: `"split"`, `"split.1"`.

    Args:
        model: a built Sequential or Functional model; models within it are opened.
        split: may put several layers in the place of one.
        whole: names of calls where it may not.
    """
    graph = own_graph(model)
    walk = _Numbering(split, whole)
    inputs = [walk.number(tensor, tensor.name) for tensor in graph.inputs]
    outputs = walk.run(graph, inputs)
    tensors, names = zip(*walk.tensors, strict=True)
    return Calls(tuple(walk.calls), tuple(inputs), tuple(outputs), tensors, names)


class _Numbering(Walk):
    def __init__(self, split: Split, whole: Container[str]) -> None:
        self._split, self._whole = split, whole
        self.calls: list[Call] = []
        self.tensors: list[tuple[Any, str]] = []

    def number(self, tensor: Any, name: str) -> int:
        self.tensors.append((tensor, name))
        return len(self.tensors) - 1

    def visit(self, call: Call) -> Sequence[int]:
        parts = None if call.name in self._whole else self._split(call.operation)
        if parts is not None:
            return self._parts(call, parts)
        outputs = tuple(call.nodes[-1].outputs)
        names = replace(call, outputs=outputs).output_names
        made = replace(call, outputs=tuple(map(self.number, outputs, names)))
        self.calls.append(made)
        return made.outputs

    def _parts(self, call: Call, parts: Sequence[Part]) -> Sequence[int]:
        results = list(call.inputs)
        for suffix, layer, places in parts:
            inputs = tuple(results[place] for place in places)
            tensors = [self.tensors[number][0] for number in inputs]
            made = layer.compute_output_spec(one_or_all(tensors))
            results.append(self.number(made, call.name + suffix))
            part = Call(
                layer,
                inputs,
                (results[-1],),
                name=call.name + suffix,
                is_trained=call.is_trained,
                part_of=call,
            )
            self.calls.append(part)
        return results[-1:]


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
