"""The graph inside of one layer, from its own `call`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras

from kerasmem.graph.layers import sublayers


@contextmanager
def graph_inside(
    layer: Any, args: tuple, kwargs: dict[str, Any]
) -> Iterator[keras.Function | None]:
    """Yield what `layer` does with its arguments as a graph, or None if it cannot tell.

    Its `call` is run on symbols, so it must be made of layers and of `keras.ops`. The
    layer is as before once the context is left; the graph must not be used after it.

    Args:
        layer: a built layer.
        args: its arguments, `KerasTensor`s among them.
        kwargs: likewise.
    """
    with calls_forgotten(layer):
        yield _symbolic(layer, args, kwargs)


@contextmanager
def calls_forgotten(layer: Any) -> Iterator[None]:
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
    layer: Any, args: tuple, kwargs: dict[str, Any], weights: Mapping[str, Any]
) -> Any:
    """Return what the `call` of a layer makes of symbols; it may raise anything.

    Args:
        layer: a built layer.
        args: its arguments.
        kwargs: likewise.
        weights: symbols to call it with in place of weights, by attribute.
    """
    inner = sublayers(layer)
    before = [dict(vars(one)) for one in inner]
    try:
        for one in inner:
            # It takes values only.
            vars(one)["add_loss"] = lambda loss: None  # noqa: ARG005
        # Not `setattr`: a layer that is built takes no other weight.
        vars(layer).update(weights)
        # Whatever it assigns, such as the state of random numbers, stays in the scope.
        with keras.StatelessScope():
            return layer.call(*args, **kwargs)
    finally:
        # It may have kept symbols, such as its last logits, under names of its own.
        for one, attributes in zip(inner, before, strict=True):
            for name in vars(one).keys() - attributes.keys():
                del vars(one)[name]
            vars(one).update(attributes)


def _symbolic(layer: Any, args: tuple, kwargs: dict[str, Any]) -> Any | None:
    inputs: list[Any] = []

    def renewed(x: Any) -> Any:
        if isinstance(x, keras.KerasTensor):
            x = keras.Input(batch_shape=x.shape, dtype=x.dtype)
            inputs.append(x)
        return x

    new_args, new_kwargs = keras.tree.map_structure(renewed, (args, kwargs))
    try:
        return keras.Function(inputs, call_on_symbols(layer, new_args, new_kwargs, {}))
    except Exception:  # noqa: BLE001 - a user's `call` may raise anything on symbols
        return None
