"""A loss per sample, weighted and averaged as Keras does it."""

from collections.abc import Callable
from typing import Any

import keras


class Reduced(keras.losses.Loss):
    """Makes one number of what a function gives for a batch.

    Sample weights, masks, half precision and the scaling over replicas are Keras's.

    Args:
        distances: takes what the teacher gives and what the student gives, in float32,
            and returns one value per sample, or per entry of it.
    """

    def __init__(self, distances: Callable[[Any, Any], Any]) -> None:
        super().__init__(name="distillation", dtype="float32")
        self._distances = distances

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the distances: what the teacher gives comes first."""
        return self._distances(y_true, y_pred)
