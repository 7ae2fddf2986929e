"""Post-mortem of an out-of-memory error."""

import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import keras

from kerasmem.backends import device_kind
from kerasmem.errors import KerasMemWarning
from kerasmem.graph.activation_policy import ActivationPolicy, assumed_policy
from kerasmem.graph.values import held_bytes
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.estimate.variables import accumulator_bytes
from kerasmem.memory.oom.cause import figures_of
from kerasmem.memory.oom.fitting import (
    Fitting,
    Room,
    StepContext,
    correction_by_failure,
    fewest_micro_batches,
)
from kerasmem.memory.oom.savings import (
    SAVINGS,
    FailedStep,
    Saving,
    remedies_for,
    worthwhile,
)
from kerasmem.records import (
    MEASURED,
    Cause,
    EstimatePart,
    MemoryEstimate,
    PostMortem,
    Remedy,
    Timeline,
)
from kerasmem.types import Model

_Part = TypeVar("_Part")
AtPeak = tuple[int, str, tuple[EstimatePart, ...]]
"""Peak bytes, source (`"measured"` or the estimation method), and parts."""
_PLANNED = "buffer assignment"
_OF_THE_DEVICE = ("device", "fragmentation", "one tensor")
_SECONDS = 20
"""Time limit in seconds after which no further estimate starts."""


def post_mortem(model: Model, cause: Cause, context: StepContext) -> PostMortem:
    """Return a report on an out-of-memory error, with remedies.

    Never raises: parts that fail are listed in `left_out`. Nothing runs on the device,
    and the result contains no tensors. Memory use at the peak is measured if `context`
    has a timeline, otherwise estimated. Call this function after the error and its
    tensors are deleted, because the current use counts as use between steps.
    """
    return _Examination(model, cause, context).report()


class _Examination:
    def __init__(self, model: Model, cause: Cause, context: StepContext) -> None:
        self._model = model
        self._cause = cause
        self._context = context
        self._estimates: dict[tuple[Any, ...], MemoryEstimate] = {}
        self._left_out: list[str] = []

    def report(self) -> PostMortem:
        context = self._context
        variables = self._try(
            "the bytes of the variables", lambda: held_bytes(self._model)
        )
        other = self._try("other memory in use", lambda: self._other_bytes(variables))
        at_peak = self._try("memory use at the peak", self._at_peak)
        peak_bytes, source, parts = at_peak or (None, None, ())
        room = self._try("memory for a step", lambda: self._room(other or 0))
        fitting = self._try(
            "number of micro-batches that fit", lambda: self._fitting(room)
        )
        remedies = self._try("the remedies", lambda: self._remedies(fitting, room))
        return PostMortem(
            cause=self._cause,
            model=str(getattr(self._model, "name", type(self._model).__name__)),
            backend=keras.backend.backend(),
            batch_size=context.batch_size,
            micro_batches=context.micro_batches,
            epoch=context.epoch,
            step=context.step,
            peak_bytes=peak_bytes,
            peak_source=source,
            parts=parts,
            variable_bytes=variables,
            other_bytes=other,
            fitting_micro_batches=fitting.micro_batches if fitting else None,
            fitting_bytes=fitting.peak_bytes if fitting else None,
            remedies=remedies or (),
            left_out=tuple(dict.fromkeys(self._left_out)),
            process=context.process,
            time=time.time(),
        )

    def _try(self, what: str, find: Callable[[], _Part]) -> _Part | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", KerasMemWarning)
                return find()
        except Exception as error:  # noqa: BLE001 - must not hide the original error
            reason = " ".join(str(error).split())[:300]
            self._left_out.append(f"{what}: {type(error).__name__}: {reason}")
            return None

    def _other_bytes(self, variable_bytes: int | None) -> int | None:
        if self._context.other_bytes is not None:
            return self._context.other_bytes
        now = figures_of(self._cause.device).current_bytes
        if now is None or variable_bytes is None or not self._context.is_freed:
            return None
        return max(now - variable_bytes, 0)

    def _at_peak(self) -> AtPeak | None:
        measurement = _measured(self._context.timelines)
        if measurement is not None or self._cause.kind not in _OF_THE_DEVICE:
            return measurement
        estimate = self._estimate(self._context.micro_batch_size)
        return estimate.peak_bytes, estimate.method, estimate.parts

    def _room(self, other_bytes: int) -> Room | None:
        limits = (self._context.limit_bytes, self._cause.limit_bytes)
        limit = min((one for one in limits if one is not None), default=None)
        if self._cause.kind not in _OF_THE_DEVICE or limit is None:
            return None
        accumulates = self._context.accumulates
        return Room(
            limit_bytes=limit,
            other_bytes=other_bytes,
            accumulator_bytes=accumulator_bytes(self._model) if accumulates else 0,
        )

    def _fitting(self, room: Room | None) -> Fitting | None:
        if room is None or not self._context.batch_size:
            return None
        context = self._context
        return fewest_micro_batches(
            self._estimate, room, context.batch_size, context.micro_batches
        )

    def _remedies(
        self, fitting: Fitting | None, room: Room | None
    ) -> tuple[Remedy, ...]:
        shrinks = fitting is not None and self._cause.kind == "one tensor"
        special = () if shrinks else remedies_for(self._cause)
        size = self._context.micro_batch_size
        if self._cause.kind not in _OF_THE_DEVICE:
            return special
        estimate = self._try("other remedies", lambda: self._estimate(size))
        if estimate is None:
            return special
        step = FailedStep(
            model=self._model,
            size=size,
            input_shape=self._context.input_shape,
            estimate=estimate,
            estimated=functools.partial(self._estimate, size),
        )
        end = time.monotonic() + _SECONDS
        savings = [self._saving(name, step, end) for name in SAVINGS]
        correction = correction_by_failure(estimate, room) if room else 1.0
        return (*special, *worthwhile(savings, estimate, room, correction))

    def _saving(self, name: str, step: FailedStep, end: float) -> Saving | None:
        if time.monotonic() > end:
            self._left_out.append(
                f"savings by {name}: the other estimates took {_SECONDS} seconds"
            )
            return None
        find = functools.partial(SAVINGS[name], step)
        return self._try(f"savings by {name}", find)

    def _estimate(
        self, size: int, *, policy: ActivationPolicy | None = None, **options: Any
    ) -> MemoryEstimate:
        key = (size, policy, *options.items())
        if key not in self._estimates:
            how = assumed_policy(self._model, policy) if policy else nullcontext()
            with how:
                self._estimates[key] = estimate_memory(
                    self._model,
                    size,
                    training=self._context.training,
                    device=device_kind(),
                    input_shape=self._context.input_shape,
                    **options,
                )
        return self._estimates[key]


def _measured(timelines: Sequence[Timeline]) -> AtPeak | None:
    """Return the use of the fullest allocator at its peak, or None without a timeline.

    XLA's plan for a step is ignored, because it excludes memory outside the step.
    """
    windows = [one for one in timelines if one.source != _PLANNED and one.blocks]
    if not windows:
        return None
    fullest = max(windows, key=lambda timeline: timeline.peak_bytes)
    sums: Counter[tuple[str, str | None]] = Counter()
    for block in fullest.live(fullest.peak_event):
        sums[block.category, block.layer] += block.given_bytes
    parts = tuple(EstimatePart(*key, size) for key, size in sums.most_common() if size)
    return fullest.peak_bytes, MEASURED, parts
