"""Layers that read the weights of another layer of their model."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.layers import listed_graph, of_one_class, sublayers
from kerasmem.types import Layer


class Tied:
    """What a layer tells that reads the weights of another one of the model."""

    def tied_to(self) -> Sequence[Any]:
        """Return the layers it may be made of, best first; none if it is not tied."""
        raise NotImplementedError

    def made_of(self, layer: Layer) -> Any:
        """Return a new layer like this one, tied to another layer."""
        raise NotImplementedError


def is_tied(layer: Layer) -> bool:
    """Return whether an operation reads the weights of another layer."""
    return isinstance(layer, Tied) and bool(layer.tied_to())


def tied_anew(layer: Layer, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Return a new layer that is tied to the new one of what the old one is tied to.

    Args:
        layer: the old one.
        pairs: operations that were made anew before, each with the new one.

    Raises:
        ModelError: if what it is tied to is not among them, or no layer of its kind.
    """
    new = {
        id(before): after
        for old, copied_layer in pairs
        if isinstance(old, keras.Layer) and isinstance(copied_layer, keras.Layer)
        for before, after in of_one_class(sublayers(old), sublayers(copied_layer))
    }
    for other in layer.tied_to():
        # A model made anew call by call has not the attributes of the old one.
        if id(other) in new and listed_graph(other) is None:
            return layer.made_of(new[id(other)])
    names = " or ".join(repr(other.name) for other in layer.tied_to())
    raise ModelError(
        f"The layer {layer.name!r} reads the weights of {names}, which the new model "
        "has not, or not before it. Next: leave that layer as it is, and call it "
        "before this one."
    )
