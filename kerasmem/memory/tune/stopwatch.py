"""The time and the peak of each step of a `fit`."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import keras

from kerasmem import backends

WARM_UPS = 3
"""Steps that are left out of the figures of later steps: the first, and two more."""

_FEWEST, _MOST, _SECONDS = 5, 30, 3.0

MOST_STEPS = WARM_UPS + _MOST
"""No more steps than these are ever looked at."""


class Stopwatch(keras.callbacks.Callback):
    """Times the steps of a `fit`, reads their peaks, and ends it when it knows enough.

    Args:
        model: the model that is fit. Asking a callback for its own `model` copies the
            whole state on JAX.
        every: number of batches that make one step.
    """

    def __init__(self, model: Any, every: int) -> None:
        super().__init__()
        self._model = model
        self._every = every
        self._batches = 0
        self._begin = 0.0
        self.times: list[float] = []
        self.peaks: list[int] = []
        self.is_reset = True

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's hook
        """Start the first step."""
        self._begin = time.perf_counter()

    def on_train_batch_end(
        self,
        batch: int,  # noqa: ARG002 - Keras's hook
        logs: Any = None,  # noqa: ARG002 - here they are numbers, so the step is done
    ) -> None:
        """End a step and begin the next."""
        self._batches += 1
        if self._batches % self._every:
            return
        self.times.append(time.perf_counter() - self._begin)
        readings = backends.current().device_memory()
        self.is_reset = backends.current().reset_device_peak()
        if readings:
            self.peaks.append(max(reading.peak_bytes for reading in readings))
        self._model.stop_training = self._knows_enough()
        self._begin = time.perf_counter()

    def _knows_enough(self) -> bool:
        later = self.times[WARM_UPS:]
        return len(later) >= _FEWEST and sum(later) >= _SECONDS


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    """Return what nine in ten times are above, the median, and what they are below.

    Example:
        >>> spread([5, 1, 3, 4, 2, 6, 8, 7, 9, 10, 11])
        (2.0, 6, 10.0)
    """
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    return tenths[0], statistics.median(times), tenths[-1]
