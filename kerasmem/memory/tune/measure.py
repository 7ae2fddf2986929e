"""Steps that really run, in this process: how long they take and what they need."""

import itertools
import time
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.trace import tracer
from kerasmem.memory.estimate.analytic import estimate as analytic
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.here import estimate_here as by_trace
from kerasmem.memory.estimate.xla.here import estimate_here as by_xla
from kerasmem.memory.measure.batch import zeros
from kerasmem.memory.measure.here import estimate_here as by_step
from kerasmem.records import MEASURED, MemoryEstimate
from kerasmem.stats.timing import spread

_WARM_UPS = 3
"""Steps that are left out of the figures of later steps: the first, and two more."""

_FEWEST, _MOST, _SECONDS = 5, 30, 3.0

_MOST_STEPS = _WARM_UPS + _MOST
"""No more steps than these are ever looked at."""


def measure(request: Request, every: int) -> dict[str, Any]:
    """Return the figures of a variant, by their names in `VariantFigures`.

    The model is trained on zeros for some steps: hand in one of your own.

    Args:
        request: the question; its batch is what goes through the model at a time.
        every: number of batches that make one step.
    """
    watch = _Stopwatch(request.model, every)
    # Keras would count several batches as one.
    request.model.steps_per_execution = 1
    request.model.fit(
        _repeated(zeros(request)),
        steps_per_epoch=_MOST_STEPS * every,
        shuffle=False,
        verbose=0,
        callbacks=[watch],
    )
    low, median, high = (1e3 * t for t in spread(watch.times[_WARM_UPS:]))
    return {
        "first_step_ms": 1e3 * watch.times[0],
        "step_ms": median,
        "step_low_ms": low,
        "step_high_ms": high,
        "steps": len(watch.times) - _WARM_UPS,
        "samples_per_second": 1e3 * every * request.batch_size / median,
        **_peak(request, watch),
    }


def _repeated(batch: Any) -> Any:
    if keras.backend.backend() == "tensorflow":
        # Keras would copy what a generator gives ahead of its use, and the allocator
        # would count the copies.
        return tracer("options").repeated(batch)
    return (batch for _ in itertools.repeat(None))


def _peak(request: Request, watch: "_Stopwatch") -> dict[str, Any]:
    if watch.peaks:
        # An allocator that keeps one peak for good counts the first step too.
        later = watch.peaks[_WARM_UPS:] if watch.is_reset else watch.peaks[-1:]
        return {
            "peak_bytes": max(later),
            "peak_low_bytes": min(later),
            "peak_source": MEASURED,
        }
    estimate = _estimated(request)
    if estimate is None:
        return {}
    return {
        "peak_bytes": estimate.peak_bytes,
        "peak_low_bytes": estimate.peak_bytes,
        "peak_source": estimate.method,
    }


def _estimated(request: Request) -> MemoryEstimate | None:
    """Return the estimate by the best method here, None if there is none."""
    if request.backend == "torch":
        # No method knows what torch.compile makes of a step.
        return None if request.jit_compile else by_step(request)
    if request.jit_compile:
        return by_xla(request)
    return analytic(request) if request.has_graph else by_trace(request)


class _Stopwatch(keras.callbacks.Callback):
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
        later = self.times[_WARM_UPS:]
        return len(later) >= _FEWEST and sum(later) >= _SECONDS
