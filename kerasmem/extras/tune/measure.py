"""Runs training steps and measures their time and memory."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.exhaustion import is_out_of_memory
from kerasmem.errors import ChildDiedError, KerasMemError
from kerasmem.extras.tune.variants import Variant, changed
from kerasmem.graph.layers import has_graph
from kerasmem.memory.estimate.analytic import estimate as analytic
from kerasmem.memory.estimate.inputs import zeros
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
from kerasmem.memory.estimate.measured import estimate_in_process as by_step
from kerasmem.memory.estimate.request import Request, request_of
from kerasmem.memory.estimate.traced import estimate_in_process as by_trace
from kerasmem.memory.estimate.traced.on_xla import estimate_in_process as by_xla
from kerasmem.processes import run_in_child
from kerasmem.records import MEASURED, MemoryEstimate, VariantFigures
from kerasmem.stats.timing import spread
from kerasmem.types import Logs, Model

_WARM_UPS = 3
"""Number of first steps that do not count."""

_FEWEST, _MOST, _SECONDS = 5, 30, 3.0

_MOST_STEPS = _WARM_UPS + _MOST
"""Maximum number of steps per variant."""


def measure(request: Request, every: int) -> dict[str, Any]:
    """Return the figures of a variant, by field name of `VariantFigures`.

    The model is trained on zeros for some steps, so pass a copy.

    One step has `every` batches.
    """
    watch = _Stopwatch(request.model, every)
    # Otherwise Keras counts several batches as one.
    request.model.steps_per_execution = 1
    request.model.fit(
        backends.current().step_options().repeated(zeros(request)),
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


def _peak(request: Request, watch: "_Stopwatch") -> dict[str, Any]:
    if watch.peaks:
        # An allocator whose peak cannot be reset includes the first step.
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
    if request.backend == "torch":
        # No method estimates a step compiled by torch.compile.
        return None if request.jit_compile else by_step(request)
    if request.jit_compile:
        return by_xla(request)
    return analytic(request) if has_graph(request.model) else by_trace(request)


class _Stopwatch(keras.callbacks.Callback):
    """Measures time and peak memory of the steps of a `fit` and stops it.

    The model is an argument, because `self.model` of a callback copies the state on
    JAX.
    """

    def __init__(self, model: Model, every: int) -> None:
        super().__init__()
        self._model = model
        self._every = every
        self._batches = 0
        self._begin = 0.0
        self.times: list[float] = []
        self.peaks: list[int] = []
        self.is_reset = True

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's hook
        self._begin = time.perf_counter()

    def on_train_batch_end(
        self,
        batch: int,  # noqa: ARG002 - Keras's hook
        logs: Logs = None,  # noqa: ARG002 - numbers, so the step has finished
    ) -> None:
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


_COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": COUNTING_ALLOCATOR["TF_CPU_ALLOCATOR_USE_BFC"]}
"""Makes TensorFlow's allocator count without changing the kernels."""

_LONGEST_REASON = 200


def attempt(request: Request, variant: Variant) -> VariantFigures:
    """Return the figures of `variant`, or the reason that it failed."""
    answer_of_child: dict[str, Any]
    try:
        job = {
            **changed(request, variant).job(),
            "steps_per_update": variant.steps_per_update,
            "left_out": variant.left_out,
            "devices": variant.devices,
        }
        answer_of_child = run_in_child(
            f"{__name__}:answer",
            job,
            backend=request.backend,
            environment=_COUNTING,
            doing=f"Measuring the option {variant.name!r}",
        )
    except ChildDiedError as error:
        text = f"its process ended with {error.how}: {error.reason}"
        answer_of_child = {"reason": _one_line(text)}
    except KerasMemError as error:
        answer_of_child = {"reason": _one_line(str(error))}
    return VariantFigures(
        name=variant.name,
        how=variant.how,
        batch_size=request.batch_size // variant.steps_per_update,
        steps_per_update=variant.steps_per_update,
        **answer_of_child,
    )


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the steps in the child process. Returns figures or a failure reason."""
    try:
        if job["left_out"] is not None:
            backends.current().step_options().leave_out(job["left_out"])
        with _devices(job["devices"]):
            return measure(request_of(job), job["steps_per_update"])
    # Any exception of a framework becomes the reason of the variant's row.
    except Exception as error:  # noqa: BLE001
        return {"reason": _reason(error)}


def _devices(count: int) -> AbstractContextManager[Any]:
    if count == 1:
        return nullcontext()
    return backends.current().step_options().data_parallel()


def _reason(error: Exception) -> str:
    if is_out_of_memory(error):
        return f"out of memory: {_one_line(str(error))}"
    return f"{type(error).__name__}: {_one_line(str(error))}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]
