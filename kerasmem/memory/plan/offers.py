"""Settings that change the training, and models whose batches cannot be split."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import other_optimizers
from kerasmem.optional import feature
from kerasmem.records import Remedy
from kerasmem.types import Model

HALF = "mixed_float16"
MIXED = (
    "mixed precision",
    f"keras.config.set_dtype_policy({HALF!r}) before model creation",
)


def may_be_half(model: Model, device: str) -> bool:
    """Return whether mixed precision is an offer.

    CPUs have no fast half-precision arithmetic, so steps would be many times slower.
    """
    return model.dtype_policy.name == "float32" and device != "cpu"


def _adam_8bit() -> Any:
    return feature("Adam8bit")()


OPTIMIZERS: Mapping[str, tuple[Callable[[], Any], str]] = {
    "8-bit Adam": (
        _adam_8bit,
        "km.optimizers.Adam8bit(...) instead of the current optimizer",
    ),
    "Adafactor": (
        keras.optimizers.Adafactor,
        "keras.optimizers.Adafactor(...) stores only rows and columns of its "
        "statistics; it needs another learning rate",
    ),
    "SGD": (
        keras.optimizers.SGD,
        "keras.optimizers.SGD(...) without momentum stores no statistics; it needs "
        "another learning rate",
    ),
}
"""Optimizers with a smaller state, and how to use them."""

_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)


def smaller_batches(model: Model) -> Remedy | None:
    """Return a remedy if batches of the model cannot be split, else `None`."""
    optimizers = other_optimizers(model)
    if optimizers:
        return Remedy(
            name="smaller batches",
            how=f"the `train_step` has other optimizers ({', '.join(optimizers)}) "
            "than `model.optimizer`, so a batch cannot be split; pass a smaller "
            "batch_size if memory runs out",
        )
    names = [
        layer.name
        for layer in sublayers(model)
        if isinstance(layer, _RECURRENT) and layer.stateful
    ]
    if not names:
        return None
    return Remedy(
        name="smaller batches",
        how=f"the layer {names[0]!r} is stateful and needs a fixed batch size, so a "
        "batch cannot be split; build the model for a smaller batch size",
    )
