"""The calls that one forward pass of a model makes, in order, with their tensors."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.graph.inside import graph_inside, opened
from kerasmem.graph.layers import has_graph, lists_layers

Opens = Callable[[Any], bool]


@dataclass(frozen=True)
class Call:
    """One operation called once.

    Args:
        operation: the layer, or the `keras.Operation` of a call such as `a + b`.
        inputs: the `KerasTensor`s that went in; empty for an input of the model.
        outputs: the `KerasTensor`s that came out.
        variables: the `keras.Variable`s that went in as arguments.
        names: of the operation's arguments, that of each of `inputs` and, after them,
            of `variables`; empty for an input of the model.
        owner: the layer in whose `call` it happens, None in the model's own graph.
        nodes: the nodes of graphs that it happens in, outermost first; empty for an
            input of the model.
    """

    operation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    variables: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    owner: Any = None
    nodes: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Trace:
    """The calls of one forward pass and the tensors that it returns."""

    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]


def trace(
    model: Any,
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
        batch_size: length of the batch axis, from 1.
        shapes: shapes of the inputs with the batch axis, for a model that leaves
            lengths open; None for the model's own.
        opens: says of a layer whether the calls within its own `call` are wanted in
            its place; it is left whole if that is not made of layers and `keras.ops`.
    """
    graph = own_graph(model)
    if graph is None:
        return None
    own = [tensor.shape for tensor in graph.inputs] if shapes is None else shapes
    inputs = [
        _with_batch(tensor, shape, batch_size)
        for tensor, shape in zip(graph.inputs, own, strict=True)
    ]
    layers = [tensor._keras_history.operation for tensor in graph.inputs]
    calls = [Call(op, (), (x,)) for op, x in zip(layers, inputs, strict=True)]
    inner = _trace_graph(graph, inputs, opens)
    return Trace((*calls, *inner.calls), inner.outputs)


def trace_call(
    operation: Any, args: tuple, kwargs: dict[str, Any], opens: Opens
) -> Trace:
    """Return the calls within one call of an operation, itself if it stays whole.

    Args:
        operation: a layer or a `keras.Operation`.
        args: its arguments, `KerasTensor`s of known shapes among them.
        kwargs: likewise.
        opens: see `trace`.
    """
    return _open(operation, args, kwargs, opens, None)


def _trace_graph(
    graph: Any, inputs: Sequence[Any], opens: Opens, owner: Any = None
) -> Trace:
    known = {id(tensor): x for tensor, x in zip(graph.inputs, inputs, strict=True)}
    calls: list[Call] = []
    for node in nodes_in_order(graph):
        args, kwargs = node.arguments.fill_in(known)
        opened = _open(node.operation, args, kwargs, opens, owner)
        calls.extend(replace(c, nodes=(node, *c.nodes)) for c in opened.calls)
        known.update(zip(map(id, node.outputs), opened.outputs, strict=True))
    return Trace(tuple(calls), tuple(known[id(tensor)] for tensor in graph.outputs))


def _open(
    operation: Any, args: tuple, kwargs: dict[str, Any], opens: Opens, owner: Any
) -> Trace:
    graph = own_graph(operation)
    if graph is not None:
        return _trace_graph(
            graph, keras.tree.flatten(first_argument(args, kwargs)), opens, owner
        )
    if isinstance(operation, keras.layers.Layer) and opens(operation):
        known = opened(operation)
        if known is not None:
            tensors = known.inputs(operation, args, kwargs)
            return _trace_graph(known.graph, tensors, opens, operation)
        with graph_inside(operation, args, kwargs) as inside:
            if inside is not None:
                given = keras.tree.flatten((args, kwargs))
                tensors = [x for x in given if isinstance(x, keras.KerasTensor)]
                return _trace_graph(inside, tensors, opens, operation)
    given = _named(operation, args, kwargs)
    tensors = [(name, x) for name, x in given if isinstance(x, keras.KerasTensor)]
    variables = [(name, x) for name, x in given if isinstance(x, keras.Variable)]
    call = Call(
        operation,
        inputs=tuple(x for _, x in tensors),
        outputs=_output_specs(operation, args, kwargs),
        variables=tuple(x for _, x in variables),
        names=tuple(name for name, _ in (*tensors, *variables)),
        owner=owner,
    )
    return Trace((call,), call.outputs)


def _named(
    operation: Any, args: tuple, kwargs: dict[str, Any]
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
        for name, given in (*by_place, *by_name)
        for x in keras.tree.flatten(given)
    ]


def _output_specs(operation: Any, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """Return the `KerasTensor`s that an operation makes of others."""
    kwargs.pop("training", None)  # Identity and others take none here
    outputs = tuple(keras.tree.flatten(operation.compute_output_spec(*args, **kwargs)))
    if not any(getattr(x, "sparse", False) for x in keras.tree.flatten((args, kwargs))):
        # For Keras a product with a plain tensor is sparse: that tensor may be so.
        outputs = tuple(keras.KerasTensor(x.shape, x.dtype) for x in outputs)
    if isinstance(operation, keras.layers.EinsumDense) and None in outputs[0].shape:
        # Keras gives the lengths that it was built with, whatever comes in.
        kernel = keras.KerasTensor(operation.kernel.shape, operation.compute_dtype)
        made = keras.ops.einsum(operation.equation, args[0], kernel)
        return (keras.KerasTensor(made.shape, outputs[0].dtype),)
    if hasattr(operation, "newshape") and outputs[0].shape.count(None) == 1:
        return (_of_size(outputs[0], args[0]),)
    return outputs


def _of_size(reshaped: Any, x: Any) -> Any:
    """Return a reshaped tensor with the one length that Keras did not follow."""
    known = math.prod(size for size in reshaped.shape if size is not None)
    if None in x.shape or not known:
        return reshaped
    length = math.prod(x.shape) // known
    shape = [length if size is None else size for size in reshaped.shape]
    return keras.KerasTensor(shape, reshaped.dtype)


def _with_batch(tensor: Any, shape: Sequence[int | None], batch_size: int) -> Any:
    first, *rest = shape
    shape = (batch_size if first is None else first, *rest)
    return keras.KerasTensor(shape, dtype=tensor.dtype, sparse=tensor.sparse)


def first_argument(args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return what a model is called on, by place or by name."""
    return args[0] if args else next(iter(kwargs.values()))


def own_graph(model: Any) -> Any:
    """Return the Functional model that a model with a graph runs, None without one."""
    # A Sequential keeps its graph in a model of its own, which nothing public returns.
    if isinstance(model, keras.Sequential):
        return model._functional
    return model if has_graph(model) else None


def listed_graph(model: Any) -> Any:
    """Return the same for a model whose config lists its layers, None for others.

    Of these only another can be made with other layers in it.
    """
    return own_graph(model) if lists_layers(model) else None


def nodes_in_order(graph: Any) -> list[Any]:
    """Return the calls of a Functional model in the order in which Keras runs them."""
    # By decreasing depth. Public Keras lists the operations, but not which call of a
    # shared one takes which tensors.
    depths = sorted(graph._nodes_by_depth, reverse=True)
    nodes = [node for depth in depths for node in graph._nodes_by_depth[depth]]
    return [node for node in nodes if not node.is_input]


def is_trained(node: Any) -> bool:
    """Return True for a call that asks for training whatever the model does."""
    args, kwargs = node.arguments.args, node.arguments.kwargs
    return bool(kwargs.get("training") or any(arg is True for arg in args[1:]))
