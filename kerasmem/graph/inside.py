"""Traces the `call` of a single layer into a graph."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import keras

from kerasmem.backends.patching import change_class
from kerasmem.graph.layers import as_it_was, sublayers
from kerasmem.types import Layer, Node, Tensor, Tensors, Variable


class Inside(NamedTuple):
    """Graph of a layer's `call`. The last inputs are the `weights` of the layer."""

    graph: keras.Function
    weights: tuple[Any, ...]


@contextmanager
def graph_inside(
    layer: Layer, args: tuple, kwargs: dict[str, Any]
) -> Iterator[Inside | None]:
    """Yields the graph of a layer's `call`, or None if tracing fails.

    Runs `call` on symbolic tensors, so it may only use layers and `keras.ops`. Weights
    are also symbolic if the layer allows this. Otherwise a value computed from a weight
    would be a large constant. The graph is only valid inside the scope.
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
    """A layer and the graph of its `call` in training.

    `places` contains the indices of the graph inputs in the flattened arguments. The
    graph is outdated if the ids in `weights` change.
    """

    graph: keras.Function
    names: tuple[str, ...]
    places: tuple[int, ...]
    weights: tuple[int, ...]

    def inputs(self, layer: Layer, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """Returns the graph inputs for the arguments of another call."""
        arguments = _parameters(layer).bind(*args, **kwargs).arguments
        leaves = keras.tree.flatten({name: arguments.get(name) for name in self.names})
        return [leaves[place] for place in self.places]


_OPENED: WeakKeyDictionary[Any, Opened] = WeakKeyDictionary()


def opened(layer: Layer) -> Opened | None:
    """Returns the result of `open_for_good` for a layer, or None."""
    opened_layer = _OPENED.get(layer)
    # The weights can change later, for example with LoRA.
    return (
        opened_layer
        if opened_layer is None or opened_layer.weights == _weights(layer)
        else None
    )


def _weights(layer: Layer) -> tuple[int, ...]:
    return tuple(map(id, layer.variables))


def open_for_good(node: Node) -> keras.Function | None:
    """Returns the training graph of a layer, which can replace its `call`.

    Returns None if the results could differ. This is the case if `call` draws random
    numbers, assigns, adds a loss or sets an attribute. Computing with a weight only,
    axes of unknown length, casts of weights and automatic masks are also excluded.
    `node` is the only call of a built layer.
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
    # Read from the class, because the method of the layer can be wrapped.
    parameters = [*inspect.signature(type(layer).call).parameters.values()]
    return inspect.Signature(parameters[1:])


def _is_told_all(parameters: inspect.Signature, arguments: Mapping[str, Any]) -> bool:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(one.kind in several for one in parameters.parameters.values()):
        return False
    masks = {"mask", *(f"{name}_mask" for name in parameters.parameters)}
    return masks & {*parameters.parameters} <= {*arguments}


def _computes_alike(layer: Layer, graph: keras.Function) -> bool:
    """Returns whether the operations of a graph compute the same as `call`.

    Weights must be used without a cast. Added tensors must vary along the last axis
    only. On TensorFlow, `keras.ops.add` treats another axis as a bias axis, which `+`
    does not.
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
        # `Function.compute_output_spec` would only combine stored shapes.
        keras.Operation.compute_output_spec(graph, graph._inputs_struct)
    except Exception:  # noqa: BLE001 - training would raise the same error
        return False
    return True


@contextmanager
def calls_forgotten(layer: Layer) -> Iterator[None]:
    """Removes the records of symbolic calls of `layer` at the end of the scope."""
    inner = sublayers(layer)
    # Keras records every symbolic call in the layer and never removes the records.
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
    """Runs the `call` of a layer on symbolic tensors. Any exception is possible.

    `weights` contains symbolic replacements of weights by attribute. If `pure`, a loss,
    an assignment or random numbers raise a `ValueError`. So do values computed from
    weights only, since these are constants.
    """
    with ExitStack() as scopes:
        # A layer can store symbolic tensors in attributes, such as its last logits.
        for one in sublayers(layer):
            scopes.enter_context(as_it_was(one))
            # No issue known: in Keras 3.15, losses and shapes of layers need values.
            change_class(one, _on_symbols(type(one), weights if one is layer else {}))
        # Assignments, such as the state of random numbers, have no effect outside.
        attributes = dict(vars(layer))
        with _ReadingScope() as scope:
            outputs = layer.call(*args, **kwargs)
        changes = scope.state_mapping or vars(layer) != attributes
        if pure and (changes or scope.has_read):
            raise ValueError("The call has side effects.")
        return outputs


class _OnSymbols(keras.layers.Layer):
    """Base class to run the `call` of a layer on symbolic tensors."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Skips the hook of a user's class, which may register its subclasses."""

    def add_loss(self, loss: Any) -> None:
        """Stores the loss, because Keras accepts values only."""
        self._symbolic_loss = loss


class _ReadCall(_OnSymbols):
    compute_output_spec = keras.Operation.compute_output_spec


class _KnownLengths(_OnSymbols):
    def compute_output_spec(self, inputs: Tensors, **options: Any) -> Any:
        spec = super().compute_output_spec(inputs, **options)
        return with_known_lengths(self, inputs, spec)


def _on_symbols(cls: type, weights: Mapping[str, Any]) -> type:
    """Returns a subclass of a layer class that runs on symbolic tensors.

    `weights` maps attribute names to symbolic replacements.
    """
    form = _KnownLengths if issubclass(cls, keras.layers.EinsumDense) else _OnSymbols
    form = _ReadCall if _inherits_spec(cls) else form
    read = {name: property(lambda _, x=symbol: x) for name, symbol in weights.items()}
    return type(cls.__name__, (form, cls), {"__module__": cls.__module__, **read})


def with_known_lengths(layer: Layer, inputs: Tensors, spec: Any) -> Any:
    """Returns the output spec of an `EinsumDense` with the known lengths of its inputs.

    Keras leaves axes open that are `None` in the layer's `output_shape`.
    """
    if None not in spec.shape:
        return spec
    kernel = keras.KerasTensor(layer.kernel.shape, layer.compute_dtype)
    output = keras.ops.einsum(layer.equation, inputs, kernel)
    return keras.KerasTensor(output.shape, spec.dtype)


class _ReadingScope(keras.StatelessScope):
    """A scope that records whether the value of a variable is read."""

    has_read = False

    def get_current_value(self, variable: Variable) -> Any:
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

    # `map_structure` changes the order of dicts on torch.
    renewed_flat = [renewed(x) for x in keras.tree.flatten((args, kwargs))]
    new_args, new_kwargs = keras.tree.pack_sequence_as((args, kwargs), renewed_flat)
    try:
        outputs = call_on_symbols(layer, new_args, new_kwargs, weights, pure=pure)
        return keras.Function([*inputs, *weights.values()], outputs)
    except Exception:  # noqa: BLE001 - a user's `call` may raise anything on symbols
        return None


_ASSIGNED: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
"""Ids of the variables that a call assigns. Plans try many sets of calls."""


def runs_twice(node: Node) -> bool:
    """Returns whether a call may run again in the backward pass.

    This is not the case if it assigns a trained weight or a variable of another object.
    """
    layer = node.operation
    is_layer = isinstance(layer, keras.layers.Layer)
    if not is_layer or all(_is_known(type(one)) for one in sublayers(layer)):
        return True
    if node not in _ASSIGNED:
        arguments, trial = node.arguments, _Trial(layer)
        training = {"training": True} if layer._call_has_training_arg else {}
        kwargs = {**arguments.kwargs, **training}
        with suppress(Exception):  # The user's code. The first step raises the error.
            trial.compute_output_spec(*arguments.args, **kwargs)
        _ASSIGNED[node] = trial.assigned
    own = {id(v) for v in [*layer.variables, *layer.metrics_variables]}
    return _ASSIGNED[node] <= own - {id(v) for v in layer.trainable_variables}


class _Trial(keras.Operation):
    """Calls a layer and records the ids of the variables that it assigns."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._layer = layer
        self.assigned: set[int] = set()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs of the layer."""
        scope = keras.StatelessScope(collect_losses=True, initialize_variables=False)
        with scope:
            outputs = self._layer(*args, **kwargs)
        self.assigned.update(scope.state_mapping)
        return outputs


def _is_known(cls: type) -> bool:
    others = (keras.layers.Lambda, keras.layers.SpectralNormalization)
    return cls.__module__.startswith("keras.src.") and not issubclass(cls, others)
