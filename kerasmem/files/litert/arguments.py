"""What goes into a file of a model and what comes out, as lists."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.backends.litert import Argument
from kerasmem.errors import ConfigError


def arguments_of(
    model: Any, batch_size: int | None, samples: Sequence[np.ndarray] | None = None
) -> list[Argument]:
    """Return the inputs that a file of `model` has.

    Args:
        model: a built `keras.Model`.
        batch_size: None leaves the length of the batch axis open.
        samples: an array per input; only a subclassed model, which does not name its
            inputs, needs them.

    Raises:
        ConfigError: if the model names no inputs and there are no samples.
    """
    tensors = getattr(model, "inputs", None)
    if tensors:
        return [
            Argument(t.name, (batch_size, *t.shape[1:]), str(t.dtype)) for t in tensors
        ]
    if samples is None:
        raise ConfigError(
            f"The model {model.name!r} does not say what it takes. Expected: samples= "
            "with a few inputs. Received: samples=None."
        )
    return [
        Argument(f"input_{i}", (batch_size, *array.shape[1:]), str(array.dtype))
        for i, array in enumerate(samples)
    ]


def call_flat(model: Any, tensors: Sequence[Any]) -> list[Any]:
    """Return the outputs of `model` in inference as a list, of inputs as a list."""
    return keras.tree.flatten(model(in_structure(model, tensors), training=False))


def in_structure(model: Any, tensors: Sequence[Any]) -> Any:
    """Return inputs in a list as the structure that `model` takes."""
    if isinstance(model, keras.Sequential) or not getattr(model, "inputs", None):
        return tensors[0] if len(tensors) == 1 else list(tensors)
    return keras.tree.pack_sequence_as(model.input, list(tensors))
