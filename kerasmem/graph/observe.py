"""What layers take and make, on samples that stream through a model."""

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
    """Run a model on samples in inference and show what layers take and make.

    Nothing is kept: a batch is forgotten before the next one comes.

    Args:
        model: a built model.
        batches: its inputs, batch by batch, such as `input_batches` yields.
        layers: layers anywhere in it.
        inputs: see `observing`.
        outputs: see `observing`.

    Returns:
        The number of samples.
    """
    count = 0
    with current().inference(), observing(layers, inputs=inputs, outputs=outputs):
        for batch in batches:
            model(batch, training=False)
            count += len(keras.tree.flatten(batch)[0])
    return count
