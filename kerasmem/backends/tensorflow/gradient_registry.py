"""Weak references in TensorFlow's gradient registry, so that graphs can be freed.

In a graph, `tf.custom_gradient` registers a function that refers to the graph and its
variables, and never removes it. Keras optimizers use such a function to sum gradients
over replicas, so each trace of a step adds one.
"""

from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any
from weakref import ref

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import (
    ConcreteFunction,
)
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.ops import gradient_registry
from tensorflow.python.ops.resource_variable_ops import get_eager_safe_handle_data

_PREFIX = "CustomGradient-"
_HELD = "_kerasmem_gradients"


def orphaned_graphs(objects: Iterable[Any]) -> dict[int, int]:
    """Return the variable bytes of graphs that only the gradient registry refers to.

    Shared variables count once.
    """
    graph_ids = {id(one.graph) for one in objects if type(one) is ConcreteFunction}
    graphs = {id(graph): graph for _, _, graph in _entries()}
    variable_ids: set[int] = set()
    return {
        key: sum(_variable_bytes(graph, variable_ids))
        for key, graph in graphs.items()
        if key not in graph_ids
    }


def release_graphs() -> None:
    """Move each registered gradient to its graph and leave a weak reference.

    The gradient uses tensors of its graph and is useless without it. Graphs of existing
    functions stay differentiable; other graphs can be garbage collected.
    """
    for entry, gradient, graph in [*_entries()]:
        holder = _outermost(graph)
        setattr(holder, _HELD, [*getattr(holder, _HELD, ()), gradient])
        # Private: the registry has no method to remove or replace an entry.
        entry["type"] = _Weak(gradient)


def _outermost(graph: FuncGraph) -> FuncGraph:
    while isinstance(graph.outer_graph, FuncGraph):
        graph = graph.outer_graph
    return graph


class _Weak:
    """Calls a gradient function that its graph owns."""

    def __init__(self, gradient: Callable[..., Any]) -> None:
        self._gradient = ref(gradient)

    def __call__(self, *args: Any) -> Any:
        gradient = self._gradient()
        if gradient is None:
            raise RuntimeError("The graph of this gradient no longer exists.")
        return gradient(*args)


def _entries() -> Iterator[tuple[dict[str, Any], FunctionType, FuncGraph]]:
    for name, entry in list(gradient_registry._registry.items()):
        gradient = entry["type"]
        if name.startswith(_PREFIX) and isinstance(gradient, FunctionType):
            graph = next(_graphs(gradient), None)
            if graph is not None:
                yield entry, gradient, graph


def _graphs(gradient: FunctionType) -> Iterator[FuncGraph]:
    for cell in gradient.__closure__ or ():
        inside = cell.cell_contents
        if isinstance(inside, FunctionType):
            yield from _graphs(inside)
            continue
        for one in tf.nest.flatten(inside):
            graph = None if isinstance(one, tf.Variable) else getattr(one, "graph", 0)
            if isinstance(graph, FuncGraph):
                yield graph


def _variable_bytes(graph: FuncGraph, seen: set[int]) -> Iterator[int]:
    for outside, _ in graph.captures:
        if outside.dtype != tf.resource or id(outside) in seen:
            continue
        seen.add(id(outside))
        handle = get_eager_safe_handle_data(outside)
        for each in handle.shape_and_type:
            elements = tf.TensorShape(each.shape).num_elements() or 0
            yield elements * tf.as_dtype(each.dtype).size
