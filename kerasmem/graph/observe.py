"""Observes inputs and outputs of layers on samples."""

from collections.abc import Iterable
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.patching import See, observing
from kerasmem.types import Model


def observe(
    model: Model,
    batches: Iterable[Any],
    layers: Iterable[Any],
    *,
    inputs: See | None = None,
    outputs: See | None = None,
) -> int:
    """Runs a model in inference mode and passes inputs and outputs of layers on.

    Args:
        model: A built model.
        batches: Batches of inputs, such as from `input_batches`.
        layers: Layers at any depth of the model.
        inputs: See `observing`.
        outputs: See `observing`.

    Returns:
        The number of samples.
    """
    count = 0
    with current().inference(), observing(layers, inputs=inputs, outputs=outputs):
        for batch in batches:
            model(batch, training=False)
            count += len(keras.tree.flatten(batch)[0])
    return count
