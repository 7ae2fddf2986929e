"""The calls in a model's own graph, as Keras keeps them."""

from typing import Any

import keras

from kerasmem.graph.layers import has_graph, lists_layers


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
