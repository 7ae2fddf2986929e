"""Batches of zeros, and the same question for fewer samples."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np

from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import symbolic_batch


def with_batch_size(request: Request, batch_size: int) -> Request:
    """Return the same question for another batch size."""
    inputs = tuple(
        replace(one, shape=(batch_size, *one.shape[1:])) for one in request.inputs
    )
    return replace(request, batch_size=batch_size, inputs=inputs)


def zeros(request: Request) -> tuple[Any, ...]:
    """Return a batch of zeros: `(x, y)`, or `(x,)` for predict."""
    return keras.tree.map_structure(
        lambda spec: np.zeros(
            spec.shape, "float32" if "float" in spec.dtype else spec.dtype
        ),
        symbolic_batch(request),
    )


def run_once(request: Request, batch: tuple[Any, ...]) -> None:
    """Let one step happen."""
    if request.training:
        request.model.train_on_batch(*batch)
    else:
        request.model.predict_on_batch(*batch)
