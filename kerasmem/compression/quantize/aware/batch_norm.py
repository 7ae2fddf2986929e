"""BatchNormalization that trains with the statistics that inference will use.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018, which freezes them for the last part of the training.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras

from kerasmem.backends import shadow
from kerasmem.compression.quantize.activations.calls import flatten
from kerasmem.graph.layers import sublayers
from kerasmem.graph.nodes import listed_graph


def freeze(model: Any, is_passing: Callable[[], bool]) -> Callable[[], None]:
    """Have all BatchNormalization layers use their moving statistics; return the undo.

    These change no more; scale and offset go on training. One that is called with
    `training=True` takes those of a batch in inference as well, and goes on so.

    Args:
        model: the model.
        is_passing: whether a layer that is called now is to be frozen.
    """

    def call(original: Any, inputs: Any, training: Any = None, **kwargs: Any) -> Any:
        now = False if is_passing() else training
        return original(inputs, training=now, **kwargs)

    always = _always_trained(model)
    with ExitStack() as undo:
        for layer in sublayers(model):
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            if is_norm and id(layer) not in always:
                undo.callback(shadow(layer, "call", call))
        return undo.pop_all().close


def _always_trained(model: Any) -> set[int]:
    """Return the ids of what the graph calls with `training=True`."""
    if listed_graph(model) is None:
        return set()
    return {id(call.operation) for call in flatten(model).calls if call.is_trained}
