"""Steps that really run, in this process: how long they take and what they need."""

import itertools
from typing import Any

import keras

from kerasmem.backends.trace import tracer
from kerasmem.memory.estimate.analytic import estimate as analytic
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.here import estimate_here as by_trace
from kerasmem.memory.estimate.xla.here import estimate_here as by_xla
from kerasmem.memory.measure.batch import zeros
from kerasmem.memory.measure.here import estimate_here as by_step
from kerasmem.memory.tune.stopwatch import MOST_STEPS, WARM_UPS, Stopwatch, spread
from kerasmem.records import MEASURED, MemoryEstimate


def measure(request: Request, every: int) -> dict[str, Any]:
    """Return the figures of a variant, by their names in `VariantFigures`.

    The model is trained on zeros for some steps: hand in one of your own.

    Args:
        request: the question; its batch is what goes through the model at a time.
        every: number of batches that make one step.
    """
    watch = Stopwatch(request.model, every)
    # Keras would count several batches as one.
    request.model.steps_per_execution = 1
    request.model.fit(
        _repeated(zeros(request)),
        steps_per_epoch=MOST_STEPS * every,
        shuffle=False,
        verbose=0,
        callbacks=[watch],
    )
    low, median, high = (1e3 * t for t in spread(watch.times[WARM_UPS:]))
    return {
        "first_step_ms": 1e3 * watch.times[0],
        "step_ms": median,
        "step_low_ms": low,
        "step_high_ms": high,
        "steps": len(watch.times) - WARM_UPS,
        "samples_per_second": 1e3 * every * request.batch_size / median,
        **_peak(request, watch),
    }


def _repeated(batch: Any) -> Any:
    if keras.backend.backend() == "tensorflow":
        # Keras would copy what a generator gives ahead of its use, and the allocator
        # would count the copies.
        return tracer("options").repeated(batch)
    return (batch for _ in itertools.repeat(None))


def _peak(request: Request, watch: Stopwatch) -> dict[str, Any]:
    if watch.peaks:
        # An allocator that keeps one peak for good counts the first step too.
        later = watch.peaks[WARM_UPS:] if watch.is_reset else watch.peaks[-1:]
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
