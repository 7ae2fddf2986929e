"""Finds the causes of retracing."""

import time
from collections.abc import Sequence
from itertools import pairwise

import keras

from kerasmem import backends
from kerasmem.memory.estimate.inputs import zeros
from kerasmem.memory.estimate.request import Request
from kerasmem.records import Retrace, TracedStep
from kerasmem.types import Logs

_FULL_BATCHES = 2
_COMPILES_MS, _COMPILES_TIMES = 50.0, 5.0
"""XLA compiled if a step took longer than one epoch later by both thresholds."""


def last_batch(batch_size: int) -> int:
    """Return the size of the last batch to try, or 0 if no size is smaller.

    Example:
        >>> last_batch(32), last_batch(2), last_batch(1)
        (7, 1, 0)
    """
    return max(batch_size // 4 - 1, 1) if batch_size > 1 else 0


def traced_steps(request: Request) -> list[TracedStep]:
    """Train an untrained model for two epochs with a smaller last batch."""
    size, last = request.batch_size, last_batch(request.batch_size)
    x, y = zeros(request.with_batch_size(_FULL_BATCHES * size + last))
    sizes = [size] * _FULL_BATCHES + [last] * bool(last)
    request.model.steps_per_execution = 1
    begins: list[float] = []
    steps: list[TracedStep] = []

    def note(batch: int, logs: Logs) -> None:  # noqa: ARG001 - Keras names it
        took = 1e3 * (time.perf_counter() - begins[-1])
        traces = backends.current().traces(request.model)
        epoch = len(steps) // len(sizes)
        steps.append(TracedStep(epoch, batch, sizes[batch], traces, took))

    watch = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: begins.append(time.perf_counter()),  # noqa: ARG005
        on_train_batch_end=note,
    )
    request.model.fit(
        x, y, batch_size=size, epochs=2, shuffle=False, verbose=0, callbacks=[watch]
    )
    return steps


def retraces(steps: Sequence[TracedStep], *, compiled: bool) -> tuple[Retrace, ...]:
    """Return the steps after the first that were traced or compiled, and the cause.

    TensorFlow does not count XLA's compilations of one trace. For a new size, the step
    time decides.
    """
    later = {step.batch: step.step_ms for step in steps if step.epoch > 0}
    sizes = {step.samples for step in steps[:1]}
    retrace_list = []
    for before, step in pairwise(steps):
        again = later.get(step.batch, step.step_ms)
        cost = step.step_ms - again
        is_new = step.samples not in sizes
        is_slow = cost > max(_COMPILES_MS, _COMPILES_TIMES * again)
        sizes.add(step.samples)
        if (step.traces or 0) > (before.traces or 0):
            cause = _new_size(step, steps, "traced") if is_new else _no_new_size(step)
            retrace_list.append(Retrace(step.epoch, step.batch, cause, cost))
        elif compiled and is_new and is_slow:
            cause = _new_size(step, steps, "compiled")
            retrace_list.append(Retrace(step.epoch, step.batch, cause, cost))
    return tuple(retrace_list)


def _new_size(step: TracedStep, steps: Sequence[TracedStep], verb: str) -> str:
    return (
        f"{verb} again because the last batch has {step.samples} samples instead of "
        f"{steps[0].samples}: drop that batch (drop_remainder=True) or pad it"
    )


def _no_new_size(step: TracedStep) -> str:
    return (
        f"traced again for {step.samples} samples, a size already traced: the trace "
        "depends on more than the shape, such as a Python value in a layer"
    )
