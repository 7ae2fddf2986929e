"""The calls that one forward pass of a model makes, in order, with their tensors."""

import inspect
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.inside import graph_inside, opened, with_known_lengths
from kerasmem.graph.layer_table import entry_of
from kerasmem.graph.layers import (
    first_argument,
    is_trained,
    node_of,
    nodes_in_order,
    own_graph,
)
from kerasmem.types import Model, Operation, Tensor

Opens = Callable[[Any], bool]


@dataclass(frozen=True, eq=False)
class Call:
    """One operation called once.

    A walk gives every tensor of a graph a value: a `KerasTensor` of another shape in a
    `trace`, labels of channels, a number. In here, these stand for the tensors.

    Args:
        operation: the layer, or the `keras.Operation` of a call such as `a + b`.
        inputs: the values of the tensors that go in; empty for an input of the model.
        outputs: those of the tensors that come out, once it was visited.
        variables: the `keras.Variable`s that go in as arguments, in a trace.
        names: of the operation's arguments, that of each of `inputs` and, after them,
            of `variables`, in a trace.
        owner: the layer in whose `call` it happens, None in the model's own graph.
        nodes: the nodes of graphs that it happens in, outermost first, its own last;
            empty for an input of the model.
        name: its name with those of the models around it, and with its number if the
            layer is called several times: `"encoder/dense"`, `"encoder/dense:1"`.
        is_trained: whether it, or a model around it, is called with `training=True`.
        values: the value of each tensor among its arguments, by the tensor's id.
        part_of: the call of a layer that it does a part of the work of, None mostly;
            it takes `inputs` and nothing else then.
    """

    operation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] = ()
    variables: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    owner: Any = None
    nodes: tuple[Any, ...] = ()
    name: str = ""
    is_trained: bool = False
    values: dict[int, Any] = field(default_factory=dict)
    part_of: "Call | None" = None

    @property
    def whole(self) -> str:
        """The name of the call in the model that it is a part of, mostly its own."""
        return (self.part_of or self).name

    @property
    def layer(self) -> Any:
        """The layer of the model that it belongs to, mostly the one that is called."""
        return (self.part_of or self).operation

    @property
    def output_names(self) -> list[str]:
        """A name for every output: `"split"`, `"split.1"`."""
        numbers = range(len(self.outputs))
        return [f"{self.name}.{number}" if number else self.name for number in numbers]

    def arguments(self, values: Mapping[Any, Any]) -> tuple[tuple, dict[str, Any]]:
        """Return its arguments with `values[value]` in the place of each value."""
        if self.part_of is not None:
            return (one_or_all([values[x] for x in self.inputs]),), {}
        return self.bound({key: values[x] for key, x in self.values.items()})

    def bound(
        self, values: dict[int, Any] | None = None
    ) -> tuple[tuple, dict[str, Any]]:
        """Return its arguments, positional and by name, with values for tensors.

        Args:
            values: by the ids of the tensors; None for its own.
        """
        own = self.values if values is None else values
        return self.nodes[-1].arguments.fill_in(own)


def one_or_all(tensors: list[Any]) -> Any:
    """Return what a layer is called on: its tensor, or a list of several."""
    return tensors[0] if len(tensors) == 1 else tensors


class Walk(ABC):
    """One pass over the calls of a graph, those of models within it in their place."""

    @abstractmethod
    def visit(self, call: Call) -> Sequence[Any]:
        """Return the values of what a call of no model with a graph puts out."""

    def settle(self, tensors: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
        """Return the values that tensors of a graph go on with: those they are given.

        Args:
            tensors: the inputs of a graph, or what one of its calls puts out; a model
                that is called twice has the same ones twice.
            values: theirs.
        """
        del tensors
        return values

    def run(
        self, graph: Any, inputs: Sequence[Any], around: Call | None = None
    ) -> list[Any]:
        """Return the values of a graph's outputs.

        Args:
            graph: a Functional model or another graph of calls.
            inputs: the values of its inputs.
            around: the call that it is the inside of.
        """
        values = self._settled(graph.inputs, inputs)
        counts: Counter[str] = Counter()
        nodes = () if around is None else around.nodes
        prefix = f"{around.name}/" if around is not None and around.name else ""
        training = around is not None and around.is_trained
        for node in nodes_in_order(graph):
            name = f"{prefix}{node.operation.name}"
            number, counts[name] = counts[name], counts[name] + 1
            tensors = node.arguments.keras_tensors
            call = Call(
                node.operation,
                tuple(values[id(x)] for x in tensors),
                nodes=(*nodes, node),
                name=f"{name}:{number}" if number else name,
                is_trained=training or is_trained(node),
                owner=None if around is None else around.owner,
                values={id(x): values[id(x)] for x in tensors},
            )
            values |= self._settled(node.outputs, self._called(call))
        return [values[id(y)] for y in graph.outputs]

    def _settled(self, tensors: Sequence[Any], values: Sequence[Any]) -> dict[int, Any]:
        values = self.settle(tensors, values)
        return dict(zip(map(id, tensors), values, strict=True))

    def _called(self, call: Call) -> Sequence[Any]:
        inner = own_graph(call.operation)
        if inner is None:
            return self.visit(call)
        # Beside the inputs there may be a mask.
        values = keras.tree.flatten(first_argument(*call.bound()))
        arguments = call.nodes[-1].arguments
        outer = keras.tree.flatten(first_argument(arguments.args, arguments.kwargs))
        pairs = zip(outer, inner.inputs, values, strict=True)
        return self.run(inner, [self.entering(call, *pair) for pair in pairs], call)

    def entering(self, call: Call, outer: Tensor, own: Any, value: Any) -> Any:
        """Return the value of an input of a nested model, converted as Keras does it.

        Args:
            call: the call of the nested model.
            outer: its argument in the graph around it.
            own: the symbolic input of the nested model.
            value: the value of `outer`.
        """
        for convert in _conversions(outer, own):
            symbol = keras.KerasTensor(outer.shape, outer.dtype)
            outer = convert(symbol)
            node = node_of(outer)
            kind = type(node.operation).__name__.lower()
            node.operation.name = f"{node_of(own).operation.name}_{kind}"
            inside = replace(
                call,
                operation=node.operation,
                inputs=(value,),
                nodes=(*call.nodes, node),
                name=f"{call.name}/{node.operation.name}",
                values={id(symbol): value},
            )
            (value,) = self.visit(inside)
        return value


def _conversions(outer: Tensor, own: Any) -> Iterator[Callable[[Any], Any]]:
    if not isinstance(outer, keras.KerasTensor):
        return
    floats = [keras.backend.is_float_dtype(x.dtype) for x in (outer, own)]
    if outer.dtype != own.dtype and not all(floats):
        yield lambda x: keras.ops.cast(x, own.dtype)
    if len(outer.shape) == len(own.shape) + 1:
        yield lambda x: keras.ops.squeeze(x, -1)
    elif len(outer.shape) == len(own.shape) - 1:
        yield lambda x: keras.ops.expand_dims(x, -1)


@dataclass(frozen=True)
class Trace:
    """The calls of one forward pass and the tensors that it returns."""

    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]


def in_inference(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of a call as `predict` passes them.

    It sets `training` to False, also where True was given, or is the default as for
    layers of augmentation.
    """
    return kwargs | {"training": False} if "training" in kwargs else kwargs


def trace(
    model: Model,
    batch_size: int,
    shapes: Sequence[Sequence[int]] | None = None,
    opens: Opens = lambda _: False,
) -> Trace | None:
    """Return the calls of one forward pass, or None for a model without a graph.

    Nested models are opened: their layers' calls stand where the model was called.
    Nothing is computed; the tensors are symbolic, their shapes those of a batch of
    `batch_size`.

    Args:
        model: a built `keras.Model`.
        batch_size: length of the batch axis, from 1. It is left open if an operation
            takes no batch of this size and no shapes are given.
        shapes: shapes of the inputs with the batch axis, for a model that leaves
            lengths open; None for the model's own.
        opens: says of a layer whether the calls within its own `call` are wanted in
            its place; it is left whole if that is not made of layers and `keras.ops`.
    """
    graph = own_graph(model)
    if graph is None:
        return None
    if shapes is not None:
        return _traced(graph, shapes, batch_size, opens)
    lengths = [tensor.shape[1:] for tensor in graph.inputs]
    size = fixed_batch(model) or batch_size
    try:
        return _traced(graph, [(size, *rest) for rest in lengths], size, opens)
    except (ValueError, TypeError, RuntimeError):  # depends on the backend
        return _traced(graph, [(None, *rest) for rest in lengths], None, opens)


def _traced(
    graph: Any,
    shapes: Sequence[Sequence[int | None]],
    batch_size: int | None,
    opens: Opens,
) -> Trace:
    inputs = [
        _with_batch(tensor, shape, batch_size)
        for tensor, shape in zip(graph.inputs, shapes, strict=True)
    ]
    layers = [node_of(tensor).operation for tensor in graph.inputs]
    tracing = _Tracing(opens)
    tracing.calls += [Call(op, (), (x,)) for op, x in zip(layers, inputs, strict=True)]
    outputs = tracing.run(graph, inputs)
    return Trace(tuple(tracing.calls), tuple(outputs))


def trace_call(
    operation: Operation, args: tuple, kwargs: dict[str, Any], opens: Opens
) -> Trace:
    """Return the calls within one call of an operation, itself if it stays whole.

    Args:
        operation: a layer or a `keras.Operation`.
        args: its arguments, `KerasTensor`s of known shapes among them.
        kwargs: likewise.
        opens: see `trace`.
    """
    tracing = _Tracing(opens)
    graph = own_graph(operation)
    call = Call(operation, ())
    if graph is None:
        outputs = tracing.opened(call, args, kwargs)
    else:
        tensors = keras.tree.flatten(first_argument(args, kwargs))
        outputs = tracing.run(graph, tensors, call)
    return Trace(tuple(tracing.calls), tuple(outputs))


class _Tracing(Walk):
    """The calls on symbols of known shapes."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens
        self.calls: list[Call] = []

    def visit(self, call: Call) -> Sequence[Any]:
        return self.opened(call, *call.bound())

    def opened(self, call: Call, args: tuple, kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return what a call puts out; note it, or the calls within it."""
        layer = call.operation
        if not isinstance(layer, keras.layers.Layer) or not self._opens(layer):
            return self._whole(call, args, kwargs)
        inside = replace(call, owner=layer)
        opened_layer = opened(layer)
        if opened_layer is not None:
            return self.run(
                opened_layer.graph, opened_layer.inputs(layer, args, kwargs), inside
            )
        with graph_inside(layer, args, kwargs) as within:
            if within is None:
                return self._whole(call, args, kwargs)
            leaves = keras.tree.flatten((args, kwargs))
            tensors = [x for x in leaves if isinstance(x, keras.KerasTensor)]
            return self.run(within.graph, [*tensors, *within.weights], inside)

    def _whole(self, call: Call, args: tuple, kwargs: dict[str, Any]) -> Sequence[Any]:
        named_values = _named(call.operation, args, kwargs)
        tensors = [
            (name, x) for name, x in named_values if isinstance(x, keras.KerasTensor)
        ]
        variables = [
            (name, x) for name, x in named_values if isinstance(x, keras.Variable)
        ]
        whole_call = replace(
            call,
            inputs=tuple(x for _, x in tensors),
            outputs=_output_specs(call.operation, args, kwargs),
            variables=tuple(x for _, x in variables),
            names=tuple(name for name, _ in (*tensors, *variables)),
        )
        self.calls.append(whole_call)
        return whole_call.outputs


def _named(
    operation: Operation, args: tuple, kwargs: dict[str, Any]
) -> list[tuple[str, Any]]:
    """Return all that an operation is called on, with the names of the arguments.

    In the order in which `call` names them, however they were given.
    """
    names = [*inspect.signature(operation.call).parameters]
    # What goes beyond the names is of the last one, `*args`; of no name, `**kwargs`.
    by_place = [(names[min(n, len(names) - 1)], x) for n, x in enumerate(args)]
    by_name = sorted(kwargs.items(), key=lambda pair: [*names, pair[0]].index(pair[0]))
    return [
        (name, x)
        for name, value in (*by_place, *by_name)
        for x in keras.tree.flatten(value)
    ]


def _spec_of_weight(x: Tensor) -> Any:
    # Keras asks what is converted to a tensor whether it is sparse.
    return keras.KerasTensor(x.shape, x.dtype) if isinstance(x, keras.Variable) else x


def _output_specs(operation: Operation, args: tuple, kwargs: dict[str, Any]) -> tuple:
    kwargs.pop("training", None)  # Identity and others take none here
    args, kwargs = keras.tree.map_structure(_spec_of_weight, (args, kwargs))
    outputs = tuple(keras.tree.flatten(operation.compute_output_spec(*args, **kwargs)))
    if not any(getattr(x, "sparse", False) for x in keras.tree.flatten((args, kwargs))):
        # For Keras a product with a plain tensor is sparse: that tensor may be so.
        outputs = tuple(keras.KerasTensor(x.shape, x.dtype) for x in outputs)
    if isinstance(operation, keras.layers.EinsumDense):
        return (with_known_lengths(operation, args[0], outputs[0]),)
    is_reshape = entry_of(operation).channels == "reshaped_by_an_operation"
    if is_reshape and outputs[0].shape.count(None) == 1:
        return (_of_size(outputs[0], args[0]),)
    return outputs


def _of_size(reshaped: Any, x: Tensor) -> Any:
    known_size = math.prod(size for size in reshaped.shape if size is not None)
    if None in x.shape or not known_size:
        return reshaped
    length = math.prod(x.shape) // known_size
    shape = [length if size is None else size for size in reshaped.shape]
    return keras.KerasTensor(shape, reshaped.dtype)


def _with_batch(
    tensor: Tensor, shape: Sequence[int | None], batch_size: int | None
) -> Any:
    first, *rest = shape
    shape = (batch_size if first is None else first, *rest)
    return keras.KerasTensor(shape, dtype=tensor.dtype, sparse=tensor.sparse)
