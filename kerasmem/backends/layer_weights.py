"""The weights that a built layer has, exchanged: each backend keeps lists of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras


def exchange_weight(layer: Any, attribute: str, old: Any, new: Any) -> None:
    """Put another weight in the place of one that a built layer has."""
    # A built layer is locked, and Keras offers no public way to exchange a weight; its
    # own `quantize` does the same.
    layer._untrack_variable(old)
    if keras.backend.backend() == "tensorflow":
        # TensorFlow keeps a list of its own, and with it the float weight alive.
        layer._delete_tracking(attribute)
    object.__setattr__(layer, attribute, new)


@contextmanager
def unlocked(layer: Any) -> Iterator[None]:
    """Return a scope in which a built layer takes more variables and layers."""
    # See `exchange_weight`: the lock is Keras's own, and has to be opened for a moment.
    was_locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if was_locked:
            layer._tracker.lock()


def forget_float_weights(layers: list[Any]) -> None:
    """Drop the references to replaced weights that the layers around them keep."""
    if keras.backend.backend() != "torch":
        return
    modules = (module for layer in layers for module in layer.modules())
    for module in {id(m): m for m in modules}.values():
        if isinstance(module, keras.layers.Layer):
            # On torch every layer keeps a table of the parameters of all layers inside
            # it, made when it was built. This remakes the table.
            module._track_variables()
