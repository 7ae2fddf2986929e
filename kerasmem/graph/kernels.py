"""Determines which weights are kernels and along which axes their channels lie.

Keras layers are recognized by class. Other layers run on symbolic tensors, and the
products with a weight show which of its axes are summed. In a bank of experts of shape
(experts, in, out), this is the second axis. Biases, added tables of positions and
filters of convolutions are not part of a product.
"""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kerasmem.graph.calls import trace_call
from kerasmem.graph.input_shapes import is_shape
from kerasmem.graph.inside import call_on_symbols, calls_forgotten
from kerasmem.graph.layer_table import entry_of, kind
from kerasmem.graph.layers import Weight, node_of, own_graph, own_variables, sublayers
from kerasmem.types import Layer, Node, Tensor, Tensors


def is_kernel(weight: Weight) -> bool:
    """Returns whether a weight is a matrix or higher tensor that multiplies an input.

    True for kernels, recurrent kernels and embedding tables. False for biases,
    normalization statistics and scales. In custom layers, weights with three or more
    axes in a product are also kernels, such as a bank of experts.
    """
    variable = weight.variable
    if variable.name.endswith(("kernel", _HEAD)) or is_embedding(weight):
        return len(variable.shape) >= 2
    # Biases and relative tables of positions can also be part of a product.
    is_added = any(word in variable.name for word in ("bias", "embed"))
    return not is_added and summed_axes(weight) is not None


def is_embedding(weight: Weight) -> bool:
    """Returns whether a weight is a lookup table of shape (rows, width)."""
    variable = weight.variable
    is_table = variable.name.endswith("embeddings") and variable.name != _HEAD
    return is_table and len(variable.shape) == 2


_HEAD = "reverse_embeddings"
"""Kernel of shape (width, words) of an untied `ReversibleEmbedding`."""


def class_of_call(layer: Layer) -> type:
    """Returns the class that defines the `call` of a layer, except in kerasmem."""
    classes = (cls for cls in type(layer).__mro__ if "call" in vars(cls))
    return next(cls for cls in classes if not cls.__module__.startswith("kerasmem."))


def is_depthwise(weight: Weight) -> bool:
    """Returns whether a kernel connects each output channel to one input channel."""
    is_one = _layout(weight) in ("depthwise", "separable")
    return is_one and weight.variable.name in ("kernel", "depthwise_kernel")


def is_convolution(weight: Weight) -> bool:
    """Returns whether a weight is the kernel of a convolution of any kind."""
    return _layout(weight) in ("convolution", "transposed", "depthwise", "separable")


def reduced_axes(weight: Weight) -> tuple[int, ...]:
    """Returns the axes of a kernel that one output channel sums over.

    The other axes are the channels, each with its own scale. The channels of an
    embedding table are its rows. In a bank of experts of shape (experts, in, out),
    every expert has separate channels.
    """
    rank = len(weight.variable.shape)
    if is_embedding(weight):
        return (rank - 1,)
    if is_depthwise(weight):
        return tuple(range(rank - 2))
    if _layout(weight) == "transposed":
        return (*range(rank - 2), rank - 1)
    if _layout(weight) == "einsum":
        _, kernel, output = einsum_parts(weight.owner.equation)
        return tuple(a for a, letter in enumerate(kernel) if letter not in output)
    return summed_axes(weight) or tuple(range(rank - 1))


def einsum_parts(equation: str) -> tuple[str, str, str]:
    """Returns the letters of the input, the kernel and the output of an EinsumDense.

    Example:
        >>> einsum_parts("...d, dh -> ...h")
        ('...d', 'dh', '...h')
    """
    inputs, output = equation.replace(" ", "").split("->")
    input_letters, kernel = inputs.split(",")
    return input_letters, kernel, output


def with_bias_and_activation(layer: Layer, outputs: Tensors) -> Any:
    """Adds the bias and the activation of a layer to its product."""
    if layer.bias is not None:
        outputs = keras.ops.add(outputs, by_channel(layer, layer.bias))
    return outputs if layer.activation is None else layer.activation(outputs)


def by_channel(layer: Layer, values: Any) -> Any:
    """Returns per-channel values in a shape that broadcasts to a layer's outputs."""
    if getattr(layer, "data_format", None) != "channels_first":
        return values
    return keras.ops.reshape(values, (1, -1, *[1] * layer.rank))


def _layout(weight: Weight) -> str | None:
    return entry_of(weight.owner, subclasses=True).kernel


_Arguments = tuple[tuple, dict[str, Any]]
_BATCH, _LENGTH = 2, 8  # for axes of unknown length
_AXES: WeakKeyDictionary[Any, dict[str, tuple[int, ...]]] = WeakKeyDictionary()


def summed_axes(weight: Weight) -> tuple[int, ...] | None:
    """Returns the axes of a weight summed over by products in its layer, ascending.

    Returns None for weights with fewer than three axes and for Keras layers. Also None
    if no product uses the weight, products differ, or the layer cannot be traced.
    """
    owner = weight.owner
    if weight.attribute not in _attributes(owner):
        return None
    if owner not in _AXES:
        _read(weight.block)
    return _AXES[owner].get(weight.attribute)


def _attributes(owner: Any) -> list[str]:
    homes = (cls.__module__.partition(".")[0] for cls in type(owner).__mro__)
    if next(home for home in homes if home != "kerasmem") == "keras":
        return []
    own = {id(v) for v in own_variables(owner) if len(v.shape) >= 3}
    return [name for name, value in vars(owner).items() if id(value) in own]


def _read(block: Layer) -> None:
    layers = [one for one in sublayers(block) if _attributes(one)]
    while unread := [one for one in layers if one not in _AXES]:
        calls_by_owner: dict[int, tuple[Any, list[_Arguments]]] = {}
        for owner, arguments in _calls(block, set(map(id, unread))):
            calls_by_owner.setdefault(id(owner), (owner, []))[1].append(arguments)
        # Layers inside these layers are read in the next round.
        _AXES.update(
            (owner, _axes(owner, calls)) for owner, calls in calls_by_owner.values()
        )
        if not calls_by_owner:
            _AXES.update((one, {}) for one in unread)


def _calls(block: Layer, wanted: set[int]) -> Iterator[tuple[Any, _Arguments]]:
    arguments = _arguments(block)
    if arguments is None:
        return
    if id(block) in wanted:
        yield block, arguments
        return

    def opens(layer: Layer) -> bool:
        inner = (id(one) for one in sublayers(layer))
        return id(layer) not in wanted and any(one in wanted for one in inner)

    try:
        calls = trace_call(block, *arguments, opens).calls
    except Exception:  # noqa: BLE001 - a user's `call` may raise anything on symbols
        return
    for call in calls:
        if id(call.operation) in wanted:
            tensors = iter(call.inputs)
            yield call.operation, _renewed(call.nodes[-1], lambda _: next(tensors))  # noqa: B023


def _arguments(block: Layer) -> _Arguments | None:
    graph = own_graph(block)
    if graph is not None:
        return ([_with_lengths(x) for x in graph.inputs],), {}
    if block._inbound_nodes:
        return _renewed(block._inbound_nodes[0], _with_lengths)
    # Private: Keras stores these shapes for saving.
    shapes = block._build_shapes_dict or {}
    symbols = {
        name.removesuffix("_shape"): _with_lengths(keras.KerasTensor(shape))
        for name, shape in shapes.items()
        if is_shape(shape)
    }
    if len(symbols) == 1:
        return (*symbols.values(),), {}
    return ((), symbols) if symbols else None


def _renewed(node: Node, new: Callable[[Any], Any]) -> _Arguments:

    def renewed(x: Tensor) -> Any:
        return new(x) if isinstance(x, keras.KerasTensor) else x

    return node.arguments.convert(renewed)


def _with_lengths(x: Tensor) -> Any:
    shape = [_LENGTH if size is None else size for size in x.shape]
    if shape and x.shape[0] is None:
        shape[0] = _BATCH
    return keras.KerasTensor(shape, x.dtype)


def _axes(owner: Any, calls: list[_Arguments]) -> dict[str, tuple[int, ...]]:
    axes_by_name: dict[str, set[tuple[int, ...]]] = {
        name: set() for name in _attributes(owner)
    }
    for args, kwargs in calls:
        for name, axes in _axes_in_call(owner, args, kwargs).items():
            axes_by_name[name] |= axes
    return {
        name: next(iter(each)) for name, each in axes_by_name.items() if len(each) == 1
    }


def _axes_in_call(
    owner: Any, args: tuple, kwargs: dict[str, Any]
) -> dict[str, set[tuple[int, ...]]]:
    symbols = {
        name: keras.KerasTensor(vars(owner)[name].shape, owner.compute_dtype)
        for name in _attributes(owner)
    }
    with calls_forgotten(owner):
        try:
            outputs = call_on_symbols(owner, args, kwargs, symbols)
        except Exception:  # noqa: BLE001 - see `_calls`
            return {}
        return {name: summed_in(outputs, x) for name, x in symbols.items()}


_Origin = tuple[int | None, ...]
"""Original axis of each axis of a tensor, or None."""

_MOVES = {
    *("ops.Cast", "ops.ExpandDims", "ops.GetItem", "ops.Moveaxis", "ops.Split"),
    *("ops.Squeeze", "ops.Swapaxes", "ops.Take", "ops.Transpose", "ops.Unstack"),
}


def summed_in(outputs: Tensors, tensor: Tensor) -> set[tuple[int, ...]]:
    """Returns the axes of a tensor that each product sums over.

    The tensor can be cast, indexed or transposed before the product. The search runs
    backward from `outputs`. Products that sum over all axes are ignored.
    """
    origins: dict[int, _Origin] = {id(tensor): tuple(range(len(tensor.shape)))}
    sums: set[tuple[int, ...]] = set()
    for node in _nodes(outputs):
        values = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        for place, x in enumerate(values):
            origin = origins.get(id(x))
            if origin is None:
                continue
            sum_axes = {origin[axis] for axis in _summed(node, place, values)} - {None}
            if sum_axes and set(origin) - sum_axes - {None}:
                sums.add(tuple(sorted(axis for axis in sum_axes if axis is not None)))
            if kind(node.operation) in _MOVES:
                origins.update(_moved(node, x, origin))
    return sums


def _nodes(outputs: Tensors) -> list[Any]:
    by_id: dict[int, Any] = {}
    waiting = [(x, False) for x in keras.tree.flatten(outputs)]
    while waiting:
        x, is_ready = waiting.pop()
        node = node_of(x)
        if node is None:
            continue
        if is_ready:
            by_id.setdefault(id(node), node)
        elif id(node) not in by_id:
            waiting.append((x, True))
            waiting += [(y, False) for y in node.input_tensors]
    return list(by_id.values())


def _summed(node: Node, place: int, arguments: list[Any]) -> list[int]:
    which = kind(node.operation)
    if which in ("ops.Matmul", "ops.Dot"):
        return [-2 if place == 1 and len(arguments[place].shape) > 1 else -1]
    if which != "ops.Einsum" or "->" not in node.operation.subscripts:
        return []
    inputs, output = node.operation.subscripts.replace(" ", "").split("->")
    operands = inputs.split(",")
    own = operands[place]
    others = "".join(operands[:place] + operands[place + 1 :])
    if "." in own:
        return []
    return [
        axis
        for axis, letter in enumerate(own)
        if letter in others and letter not in output
    ]


def _moved(node: Node, x: Tensor, origin: _Origin) -> dict[int, _Origin]:
    """Returns the origins of the outputs of a call that moves an argument.

    Doubles the length of each argument axis to see which output axis doubles.
    """
    axes: list[list[int | None]] = [[None] * len(y.shape) for y in node.outputs]
    for axis, size in enumerate(x.shape):
        longer = (*x.shape[:axis], 2 * size, *x.shape[axis + 1 :])
        other = keras.KerasTensor(longer, x.dtype)
        args, kwargs = node.arguments.convert(lambda y: other if y is x else y)  # noqa: B023
        new_specs = keras.tree.flatten(
            node.operation.compute_output_spec(*args, **kwargs)
        )
        # Unstacking a longer axis gives more outputs.
        for y, new, origin_axes in zip(node.outputs, new_specs, axes, strict=False):
            for place, length in enumerate(new.shape):
                if length != y.shape[place]:
                    origin_axes[place] = origin[axis]
    return {id(y): tuple(each) for y, each in zip(node.outputs, axes, strict=True)}
