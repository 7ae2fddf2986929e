"""The graph inside of one layer, from its own `call`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kerasmem.backends.shadow import shadow
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
    inner = sublayers(layer)
    # Keras notes every symbolic call at the layer that is called, and forgets none.
    counts = [len(one._inbound_nodes) for one in inner]
    try:
        with ExitStack() as stack:
            for one in inner:
                if _inherits_spec(type(one)):
                    stack.callback(shadow(one, "compute_output_spec", _as_called(one)))
            graph = _symbolic(layer, args, kwargs)
        yield graph
    finally:
        for one, count in zip(inner, counts, strict=True):
            del one._inbound_nodes[count:]


def _inherits_spec(kind: type) -> bool:
    """Return whether a class says what comes out of a `call` that is not its own."""
    owners = {
        name: next(n for n, base in enumerate(kind.__mro__) if name in vars(base))
        for name in ("call", "compute_output_spec")
    }
    spec_of = kind.__mro__[owners["compute_output_spec"]]
    return owners["call"] < owners["compute_output_spec"] and spec_of not in (
        keras.layers.Layer,
        keras.Operation,
    )


def _as_called(layer: Any) -> Any:
    """Return what looks at the `call` of a layer for what comes out."""

    def spec(_: Any, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(layer, *args, **kwargs)

    return spec


def _symbolic(layer: Any, args: tuple, kwargs: dict[str, Any]) -> Any | None:
    inputs: list[Any] = []

    def renewed(x: Any) -> Any:
        if isinstance(x, keras.KerasTensor):
            x = keras.Input(batch_shape=x.shape, dtype=x.dtype)
            inputs.append(x)
        return x

    # Not by mapping: that goes through a dict in another order where torch runs.
    renewed_flat = [renewed(x) for x in keras.tree.flatten((args, kwargs))]
    new_args, new_kwargs = keras.tree.pack_sequence_as((args, kwargs), renewed_flat)
    try:
        # Whatever it assigns, such as the state of random numbers, stays in the scope.
        with keras.StatelessScope():
            outputs = layer.call(*new_args, **new_kwargs)
        return keras.Function(inputs, outputs)
    except Exception:  # noqa: BLE001 - a user's `call` may raise anything on symbols
        return None
