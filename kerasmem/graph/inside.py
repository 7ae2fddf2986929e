"""The graph inside of one layer, from its own `call`."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import keras

from kerasmem.backends.patching import change_class
from kerasmem.graph.layers import as_it_was, sublayers
from kerasmem.types import Layer, Node, Tensor, Tensors, Variable


class Inside(NamedTuple):
    """What a layer does with its arguments.

    Args:
        graph: a graph of it.
        weights: the layer's own weights, which the last inputs of the graph stand for.
    """

    graph: keras.Function
    weights: tuple[Any, ...]


@contextmanager
def graph_inside(
    layer: Layer, args: tuple, kwargs: dict[str, Any]
) -> Iterator[Inside | None]:
    """Yield what `layer` does with its arguments as a graph, or None if it cannot tell.

    Its `call` is run on symbols, so it must be made of layers and of `keras.ops`. So
    are its weights, if it can do with symbols for them: what it makes of a weight
    alone is then part of the graph, and no array that is as large. The layer is as
    before once the context is left; the graph must not be used after it.

    Args:
        layer: a built layer.
        args: its arguments, `KerasTensor`s among them.
        kwargs: likewise.
    """
    weights = {
        name: value
        for name, value in vars(layer).items()
        if isinstance(value, keras.Variable) and value.shape
    }
    symbols = {name: _symbol(value, layer) for name, value in weights.items()}
    with calls_forgotten(layer):
        graph = _symbolic(layer, args, kwargs, symbols) if symbols else None
        if graph is None:
            weights, graph = {}, _symbolic(layer, args, kwargs)
        yield None if graph is None else Inside(graph, tuple(weights.values()))


def _symbol(weight: Any, layer: Layer) -> Any:
    dtype = keras.backend.standardize_dtype(weight.dtype)
    is_cast = keras.backend.is_float_dtype(dtype)
    return keras.Input(
        batch_shape=weight.shape, dtype=layer.compute_dtype if is_cast else dtype
    )


@dataclass(frozen=True)
class Opened:
    """A layer whose `call` in training is known as a graph.

    Args:
        graph: what it does with the tensors that it is given.
        names: names of its arguments.
        places: where among the leaves of these the graph's inputs are.
        weights: ids of the layer's variables, which another set makes out of date.
    """

    graph: keras.Function
    names: tuple[str, ...]
    places: tuple[int, ...]
    weights: tuple[int, ...]

    def inputs(self, layer: Layer, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """Return the graph's inputs, of a call of the layer with other arguments."""
        arguments = _parameters(layer).bind(*args, **kwargs).arguments
        leaves = keras.tree.flatten({name: arguments.get(name) for name in self.names})
        return [leaves[place] for place in self.places]


_OPENED: WeakKeyDictionary[Any, Opened] = WeakKeyDictionary()


def opened(layer: Layer) -> Opened | None:
    """Return what `open_for_good` made of a layer, None where it was not opened."""
    opened_layer = _OPENED.get(layer)
    # It may have other weights by now, such as those of LoRA.
    return (
        opened_layer
        if opened_layer is None or opened_layer.weights == _weights(layer)
        else None
    )


def _weights(layer: Layer) -> tuple[int, ...]:
    return tuple(map(id, layer.variables))


def open_for_good(node: Node) -> keras.Function | None:
    """Return what a layer does in training as a graph that may run in its place.

    None where the two could differ: a `call` that draws random numbers, assigns, adds
    a loss or sets an attribute by itself, computes with a weight alone or with an open
    length, takes weights that are to be cast, or a mask that Keras hands in.

    Args:
        node: the only call of a layer that is built.
    """
    layer = node.operation
    opened_layer = opened(layer)
    if opened_layer is None:
        parameters = _parameters(layer)
        arguments = node.arguments
        arguments_by_name = parameters.bind(
            *arguments.args, **arguments.kwargs
        ).arguments
        if "training" in parameters.parameters:
            arguments_by_name.setdefault("training", True)
        if not _is_told_all(parameters, arguments_by_name):
            return None
        with calls_forgotten(layer):
            graph = _symbolic(layer, (), arguments_by_name, pure=True)
            if graph is None or not (_computes_alike(layer, graph) and _runs(graph)):
                return None
        leaves = enumerate(keras.tree.flatten(arguments_by_name))
        places = [n for n, x in leaves if isinstance(x, keras.KerasTensor)]
        opened_layer = Opened(
            graph, tuple(arguments_by_name), tuple(places), _weights(layer)
        )
        _OPENED[layer] = opened_layer
    return opened_layer.graph


def _parameters(layer: Layer) -> inspect.Signature:
    # Of the class: the method of this layer may be wrapped.
    parameters = [*inspect.signature(type(layer).call).parameters.values()]
    return inspect.Signature(parameters[1:])


def _is_told_all(parameters: inspect.Signature, arguments: Mapping[str, Any]) -> bool:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(one.kind in several for one in parameters.parameters.values()):
        return False
    masks = {"mask", *(f"{name}_mask" for name in parameters.parameters)}
    return masks & {*parameters.parameters} <= {*arguments}


def _computes_alike(layer: Layer, graph: keras.Function) -> bool:
    """Return whether the operations of a graph do what the lines of `call` do.

    A weight must reach them as it is stored, and what is added must lie along the last
    axis: `keras.ops.add`, which stands for `+` between symbols, takes what has another
    one for a bias on TensorFlow.
    """
    casts = layer.compute_dtype != layer.variable_dtype
    for nodes in graph._nodes_by_depth.values():
        for node in nodes:
            values = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
            if casts and any(isinstance(x, keras.Variable) for x in values):
                return False
            if type(node.operation).__name__ == "Add":
                shape = tuple(getattr(values[1], "shape", ()))
                if any(size != 1 for size in shape[:-1]) and 1 in shape[-1:]:
                    return False
    return True


def _runs(graph: keras.Function) -> bool:
    try:
        # Not the method of `Function`, which asks its operations for their shapes.
        keras.Operation.compute_output_spec(graph, graph._inputs_struct)
    except Exception:  # noqa: BLE001 - whatever it raises, training would raise it too
        return False
    return True


@contextmanager
def calls_forgotten(layer: Layer) -> Iterator[None]:
    """Return a scope whose symbolic calls leave no trace at `layer`."""
    inner = sublayers(layer)
    # Keras notes every symbolic call at the layer that is called, and forgets none.
    counts = [len(one._inbound_nodes) for one in inner]
    try:
        yield
    finally:
        for one, count in zip(inner, counts, strict=True):
            del one._inbound_nodes[count:]


def call_on_symbols(
    layer: Layer,
    args: tuple,
    kwargs: dict[str, Any],
    weights: Mapping[str, Any],
    *,
    pure: bool = False,
) -> Any:
    """Return what the `call` of a layer makes of symbols; it may raise anything.

    Args:
        layer: a built layer.
        args: its arguments.
        kwargs: likewise.
        weights: symbols to call it with in place of weights, by attribute.
        pure: raise a ValueError if it adds a loss, assigns, draws random numbers, or
            computes with a weight alone: that would be a constant among the symbols.
    """
    with ExitStack() as scopes:
        # A layer may keep symbols, such as its last logits, in attributes.
        for one in sublayers(layer):
            scopes.enter_context(as_it_was(one))
            # No issue known: losses and shapes of layers of Keras 3.15 need values.
            change_class(one, _on_symbols(type(one), weights if one is layer else {}))
        # What it assigns, such as the state of random numbers, stays in the scope.
        attributes = dict(vars(layer))
        with _ReadingScope() as scope:
            outputs = layer.call(*args, **kwargs)
        changes = scope.state_mapping or vars(layer) != attributes
        if pure and (changes or scope.has_read):
            raise ValueError("It does more than to return something.")
        return outputs


class _OnSymbols(keras.layers.Layer):
    """A layer whose `call` may run on symbols."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Skip the hook of a user's class, which may register its subclasses."""

    def add_loss(self, loss: Any) -> None:
        """Note the loss: Keras takes values only."""
        self._symbolic_loss = loss


class _ReadCall(_OnSymbols):
    """A layer whose outputs are read from its `call`."""

    compute_output_spec = keras.Operation.compute_output_spec


class _KnownLengths(_OnSymbols):
    """An `EinsumDense` whose outputs have the lengths of its inputs."""

    def compute_output_spec(self, inputs: Tensors, **options: Any) -> Any:
        """Return the output without open lengths that are known."""
        spec = super().compute_output_spec(inputs, **options)
        return with_known_lengths(self, inputs, spec)


def _on_symbols(cls: type, weights: Mapping[str, Any]) -> type:
    """Return the subclass of a layer's class that runs on symbols.

    Args:
        cls: the class of the layer.
        weights: symbols that are read in place of weights, by attribute.
    """
    form = _KnownLengths if issubclass(cls, keras.layers.EinsumDense) else _OnSymbols
    form = _ReadCall if _inherits_spec(cls) else form
    read = {name: property(lambda _, x=symbol: x) for name, symbol in weights.items()}
    return type(cls.__name__, (form, cls), {"__module__": cls.__module__, **read})


def with_known_lengths(layer: Layer, inputs: Tensors, spec: Any) -> Any:
    """Return the output of an `EinsumDense` with the lengths of its inputs.

    Keras leaves the lengths open that are `None` in the layer's `output_shape`.

    Args:
        layer: A built `EinsumDense`.
        inputs: Its argument, a `KerasTensor`.
        spec: The output as Keras describes it.
    """
    if None not in spec.shape:
        return spec
    kernel = keras.KerasTensor(layer.kernel.shape, layer.compute_dtype)
    output = keras.ops.einsum(layer.equation, inputs, kernel)
    return keras.KerasTensor(output.shape, spec.dtype)


class _ReadingScope(keras.StatelessScope):
    """A scope that notes whether the value of a variable is read."""

    has_read = False

    def get_current_value(self, variable: Variable) -> Any:
        """Return what the variable was assigned in the scope, None for nothing."""
        self.has_read = True
        return super().get_current_value(variable)


def _inherits_spec(kind: type) -> bool:
    owners = {
        name: next(n for n, base in enumerate(kind.__mro__) if name in vars(base))
        for name in ("call", "compute_output_spec")
    }
    spec_of = kind.__mro__[owners["compute_output_spec"]]
    return owners["call"] < owners["compute_output_spec"] and spec_of not in (
        keras.layers.Layer,
        keras.Operation,
    )


def _symbolic(
    layer: Layer,
    args: tuple,
    kwargs: dict[str, Any],
    weights: Mapping[str, Any] = MappingProxyType({}),
    *,
    pure: bool = False,
) -> Any | None:
    inputs: list[Any] = []

    def renewed(x: Tensor) -> Any:
        if isinstance(x, keras.KerasTensor):
            x = keras.Input(batch_shape=x.shape, dtype=x.dtype)
            inputs.append(x)
        return x

    # Not by mapping: that goes through a dict in another order where torch runs.
    renewed_flat = [renewed(x) for x in keras.tree.flatten((args, kwargs))]
    new_args, new_kwargs = keras.tree.pack_sequence_as((args, kwargs), renewed_flat)
    try:
        outputs = call_on_symbols(layer, new_args, new_kwargs, weights, pure=pure)
        return keras.Function([*inputs, *weights.values()], outputs)
    except Exception:  # noqa: BLE001 - a user's `call` may raise anything on symbols
        return None
