"""Layers tied to the weights of another layer of the model."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from kerasmem.errors import ModelError
from kerasmem.graph.layers import listed_graph, of_one_class, sublayers
from kerasmem.types import Layer


class Tied:
    """Interface of a layer that reads the weights of another layer."""

    def tied_to(self) -> Sequence[Any]:
        """Returns possible source layers in order of preference. Empty if not tied."""
        raise NotImplementedError

    def made_of(self, layer: Layer) -> Any:
        """Returns a copy of this layer that is tied to another layer."""
        raise NotImplementedError


def is_tied(layer: Layer) -> bool:
    """Returns whether an operation reads the weights of another layer."""
    return isinstance(layer, Tied) and bool(layer.tied_to())


def tied_anew(layer: Layer, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Returns a copy of a tied layer, tied to the copy of its source layer.

    `pairs` are pairs of operations and their copies.
    """
    new = {
        id(before): after
        for old, copied_layer in pairs
        if isinstance(old, keras.Layer) and isinstance(copied_layer, keras.Layer)
        for before, after in of_one_class(sublayers(old), sublayers(copied_layer))
    }
    for other in layer.tied_to():
        # A rebuilt model lacks the custom attributes of the original model.
        if id(other) in new and listed_graph(other) is None:
            return layer.made_of(new[id(other)])
    names = " or ".join(repr(other.name) for other in layer.tied_to())
    raise ModelError(
        f"The layer {layer.name!r} reads the weights of {names}, which the new model "
        "does not contain, or calls later. Next: exclude that layer, and call it "
        "before this one."
    )
