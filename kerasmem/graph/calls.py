"""Traces the calls of a forward pass, with their tensors."""

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
    """One call of one operation.

    A walk assigns a value to every tensor of a graph: a `KerasTensor` in a `trace`,
    channel labels or an index. The fields below contain these values.

    Args:
        operation: The layer, or the `keras.Operation` of an expression such as `a + b`.
        inputs: Values of the input tensors. Empty for an input of the model.
        outputs: Values of the output tensors, set after the visit.
        variables: Variables passed as arguments, in a trace.
        names: Argument names of `inputs` and then of `variables`, in a trace.
        owner: Layer whose `call` contains this call; None in the model's graph.
        nodes: Graph nodes around the call, outermost first, and its own node. Empty for
            an input of the model.
        name: Unique name with the names of nested models, such as `"encoder/dense"`, or
            `"encoder/dense:1"` for the second call of a shared layer.
        is_trained: Whether the call, or a model around it, sets `training=True`.
        values: Values of the argument tensors, by `id` of the tensor.
        part_of: Original call, if this call is a part of it. A part uses `inputs` only.
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
        """Name of the original call, if this call is a part of it."""
        return (self.part_of or self).name

    @property
    def layer(self) -> Any:
        """Layer of the original call."""
        return (self.part_of or self).operation

    @property
    def output_names(self) -> list[str]:
        """Name of each output: `"split"`, `"split.1"`."""
        numbers = range(len(self.outputs))
        return [f"{self.name}.{number}" if number else self.name for number in numbers]

    def arguments(self, values: Mapping[Any, Any]) -> tuple[tuple, dict[str, Any]]:
        """Returns the arguments with each value replaced by `values[value]`."""
        if self.part_of is not None:
            return (one_or_all([values[x] for x in self.inputs]),), {}
        return self.bound({key: values[x] for key, x in self.values.items()})

    def bound(
        self, values: dict[int, Any] | None = None
    ) -> tuple[tuple, dict[str, Any]]:
        """Returns the positional and keyword arguments. `values` are keyed by `id`."""
        own = self.values if values is None else values
        return self.nodes[-1].arguments.fill_in(own)


def one_or_all(tensors: list[Any]) -> Any:
    """Returns the only tensor, or the list of several tensors."""
    return tensors[0] if len(tensors) == 1 else tensors


class Walk(ABC):
    """One pass over the calls of a graph, including the calls of nested models."""

    @abstractmethod
    def visit(self, call: Call) -> Sequence[Any]:
        """Returns the output values of a call, unless it calls a model with a graph."""

    def settle(self, tensors: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
        """Returns the values to use for tensors; the given values by default.

        A model that is called twice has the same tensors in both calls.
        """
        del tensors
        return values

    def run(
        self, graph: Any, inputs: Sequence[Any], around: Call | None = None
    ) -> list[Any]:
        """Returns the values of the outputs of a graph.

        `around` is the call of the nested model with this graph, or None.
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
        # Other arguments, such as a mask, are not inputs of the nested graph.
        values = keras.tree.flatten(first_argument(*call.bound()))
        arguments = call.nodes[-1].arguments
        outer = keras.tree.flatten(first_argument(arguments.args, arguments.kwargs))
        pairs = zip(outer, inner.inputs, values, strict=True)
        return self.run(inner, [self.entering(call, *pair) for pair in pairs], call)

    def entering(self, call: Call, outer: Tensor, own: Any, value: Any) -> Any:
        """Returns the value of an input of a nested model, with Keras's conversions.

        `outer` is the argument in the outer graph. `own` is the symbolic input.
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
    """Calls and outputs of one forward pass."""

    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]


def in_inference(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of a call with `training=False`.

    Overrides an explicit `training=True`, as well as the default of augmentation
    layers.
    """
    return kwargs | {"training": False} if "training" in kwargs else kwargs


def trace(
    model: Model,
    batch_size: int,
    shapes: Sequence[Sequence[int]] | None = None,
    opens: Opens = lambda _: False,
) -> Trace | None:
    """Returns the calls of one forward pass, or None for a model without a graph.

    Nested models are replaced by the calls of their layers. Nothing is computed, since
    all tensors are symbolic.

    Args:
        model: A built `keras.Model`.
        batch_size: Integer, at least 1. The batch axis is None if an operation does not
            support this size and `shapes` is None.
        shapes: Input shapes with the batch axis. Defaults to the shapes of the model.
        opens: Function that returns whether to replace a layer by the calls inside its
            `call`. Has no effect if these are not only layers and `keras.ops`.
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
    """Returns the calls inside one call of an operation, or the call itself."""
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
    """Records calls on symbolic tensors."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens
        self.calls: list[Call] = []

    def visit(self, call: Call) -> Sequence[Any]:
        return self.opened(call, *call.bound())

    def opened(self, call: Call, args: tuple, kwargs: dict[str, Any]) -> Sequence[Any]:
        """Returns the outputs of a call. Records the call, or the calls inside it."""
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
    """Returns pairs of argument name and value, in the order of the signature."""
    names = [*inspect.signature(operation.call).parameters]
    # Extra positional arguments belong to `*args`; other keywords to `**kwargs`.
    by_place = [(names[min(n, len(names) - 1)], x) for n, x in enumerate(args)]
    by_name = sorted(kwargs.items(), key=lambda pair: [*names, pair[0]].index(pair[0]))
    return [
        (name, x)
        for name, value in (*by_place, *by_name)
        for x in keras.tree.flatten(value)
    ]


def _spec_of_weight(x: Tensor) -> Any:
    # Keras reads the attribute `sparse`, which a variable does not have.
    return keras.KerasTensor(x.shape, x.dtype) if isinstance(x, keras.Variable) else x


def _output_specs(operation: Operation, args: tuple, kwargs: dict[str, Any]) -> tuple:
    kwargs.pop("training", None)  # Identity and other layers do not accept it here
    args, kwargs = keras.tree.map_structure(_spec_of_weight, (args, kwargs))
    outputs = tuple(keras.tree.flatten(operation.compute_output_spec(*args, **kwargs)))
    if not any(getattr(x, "sparse", False) for x in keras.tree.flatten((args, kwargs))):
        # Keras marks the product of a sparse and a dense tensor as sparse.
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
