"""Models whose batches cannot go in parts."""

from typing import Any

import keras

from kerasmem.graph.layers import sublayers
from kerasmem.records import Remedy

_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)


def stateful_layers(model: Any) -> list[str]:
    """Return the names of the recurrent layers that go on from batch to batch."""
    return [
        layer.name
        for layer in sublayers(model)
        if isinstance(layer, _RECURRENT) and layer.stateful
    ]


def smaller_batches(model: Any) -> Remedy | None:
    """Return what to do instead if batches cannot be split, None if they can."""
    names = stateful_layers(model)
    if not names:
        return None
    return Remedy(
        name="smaller batches",
        how=f"the layer {names[0]!r} is stateful: its state has a row for each sample "
        "of the batch that the model was made for, so a batch cannot go in parts; make "
        "the model for a smaller one",
    )
