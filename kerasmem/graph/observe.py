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
    """Runs a model in inference mode and observes layers. Returns the sample count.

    `inputs` and `outputs` are the functions for `observing`. Layers can be nested.
    """
    count = 0
    with current().inference(), observing(layers, inputs=inputs, outputs=outputs):
        for batch in batches:
            model(batch, training=False)
            count += len(keras.tree.flatten(batch)[0])
    return count
