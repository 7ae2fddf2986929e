"""How often a step is traced in a `fit` with a smaller last batch, and why."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import keras

from kerasmem import backends
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.measure.batch import with_batch_size, zeros
from kerasmem.records import Retrace, TracedStep

_FULL_BATCHES = 2
_COMPILES_MS, _COMPILES_TIMES = 50.0, 5.0
"""XLA has compiled if a step took so much longer than the same step an epoch later."""


def last_batch(batch_size: int) -> int:
    """Return the samples of the last batch that is tried, 0 if none is smaller.

    Example:
        >>> last_batch(32), last_batch(2), last_batch(1)
        (7, 1, 0)
    """
    return max(batch_size // 4 - 1, 1) if batch_size > 1 else 0


def traced_steps(request: Request) -> list[TracedStep]:
    """Return the steps of two epochs over arrays whose last batch is smaller.

    Args:
        request: the question; its model has not been trained yet.
    """
    size, last = request.batch_size, last_batch(request.batch_size)
    x, y = zeros(with_batch_size(request, _FULL_BATCHES * size + last))
    sizes = [size] * _FULL_BATCHES + [last] * bool(last)
    request.model.steps_per_execution = 1
    counter = _Counter(request.model, sizes)
    request.model.fit(
        x, y, batch_size=size, epochs=2, shuffle=False, verbose=0, callbacks=[counter]
    )
    return counter.steps


class _Counter(keras.callbacks.Callback):
    def __init__(self, model: Any, sizes: Sequence[int]) -> None:
        super().__init__()
        self._model = model  # `self.model` would copy its state, on JAX
        self._sizes = sizes
        self._epoch = 0
        self._begin = 0.0
        self.steps: list[TracedStep] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        took = 1e3 * (time.perf_counter() - self._begin)
        traces = backends.current().traces(self._model)
        samples = self._sizes[batch]
        self.steps.append(TracedStep(self._epoch, batch, samples, traces, took))


def retraces(steps: Sequence[TracedStep], *, compiled: bool) -> tuple[Retrace, ...]:
    """Return the steps after the first that were traced or compiled, and why.

    Args:
        steps: two epochs of the same batches.
        compiled: whether the step is compiled. TensorFlow does not count how often XLA
            compiles what was traced once, so for a new size the time tells.
    """
    later = {step.batch: step.step_ms for step in steps if step.epoch > 0}
    seen = {step.samples for step in steps[:1]}
    found = []
    for before, step in pairwise(steps):
        again = later.get(step.batch, step.step_ms)
        cost = step.step_ms - again
        is_new = step.samples not in seen
        is_slow = cost > max(_COMPILES_MS, _COMPILES_TIMES * again)
        seen.add(step.samples)
        if (step.traces or 0) > (before.traces or 0):
            cause = _new_size(step, steps, "traced") if is_new else _no_new_size(step)
            found.append(Retrace(step.epoch, step.batch, cause, cost))
        elif compiled and is_new and is_slow:
            cause = _new_size(step, steps, "compiled")
            found.append(Retrace(step.epoch, step.batch, cause, cost))
    return tuple(found)


def _new_size(step: TracedStep, steps: Sequence[TracedStep], verb: str) -> str:
    return (
        f"{verb} again because the last batch has {step.samples} samples instead of "
        f"{steps[0].samples}: leave it out (drop_remainder=True) or pad it"
    )


def _no_new_size(step: TracedStep) -> str:
    return (
        f"traced again for {step.samples} samples, as there were before: not the shape "
        "changed, but something the step is traced for, such as a Python value that a "
        "layer keeps"
    )
