"""Adding up, inside the training step, what an epoch's gradients looked like."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from keras import ops

from kerasmem import backends
from kerasmem.backends.steps import register_state
from kerasmem.callbacks import gradient_sums as sums
from kerasmem.callbacks.gradient_state import Due, GradientState, placing
from kerasmem.callbacks.lean_step import MEASURING_STEPS, LeanStep
from kerasmem.callbacks.measured_step import MeasuredStep, neighbors
from kerasmem.records import GradientRecord, VariableGradient


@dataclass(frozen=True)
class GradientReading:
    """One epoch's figures.

    Args:
        record: what is kept.
        skipped_steps: number of steps that loss scaling skipped.
        first_nonfinite: index in the epoch of the first update made with a gradient
            that was not finite, None if there is none.
        nonfinite_paths: the variables whose gradient was not finite then.
    """

    record: GradientRecord
    skipped_steps: int
    first_nonfinite: int | None
    nonfinite_paths: tuple[str, ...]


def read_epoch(
    epoch: int, state: GradientState, every: int, dense_bytes: Sequence[int]
) -> GradientReading | None:
    """Return what an epoch's figures tell, None if no step was seen.

    Args:
        epoch: index of the epoch, from 0.
        state: what rode in the steps.
        every: number of updates between two that were sampled, 0 if none was.
        dense_bytes: bytes of each variable's gradient, 0 if it is sparse.
    """
    vector = state.read_vector()
    count = len(state.paths)
    first_bad = vector[sums.HEAD : sums.HEAD + count]
    sparse_bytes = vector[sums.HEAD + count :]
    steps, skipped = round(vector[sums.STEPS]), round(vector[sums.SKIPPED])
    if not steps + skipped:
        return None
    nonfinite = round(vector[sums.NONFINITE])
    first_norm, last = vector[sums.FIRST], vector[sums.LAST]
    finite = steps - nonfinite
    gradient_bytes = [
        dense or round(sparse)
        for dense, sparse in zip(dense_bytes, sparse_bytes, strict=True)
    ]
    record = GradientRecord(
        epoch=epoch,
        steps=steps,
        norm=vector[sums.NORM] / finite if finite else math.nan,
        norm_max=vector[sums.LARGEST] if finite else math.nan,
        nonfinite_steps=nonfinite + skipped,
        variables=_variables(state, gradient_bytes),
        norm_last=last if steps and math.isfinite(last) else math.nan,
        norm_first=first_norm if steps and math.isfinite(first_norm) else math.nan,
        sampled_steps=tuple(range(0, steps, every) if every else ()),
        gradient_bytes=sum(gradient_bytes),
        own_bytes=state.own_bytes,
        time=time.time(),
    )
    first = min((number for number in first_bad if number), default=0.0)
    bad = [path for path, n in zip(state.paths, first_bad, strict=True) if first == n]
    return GradientReading(
        record=record,
        skipped_steps=skipped,
        first_nonfinite=round(first) - 1 if first else None,
        nonfinite_paths=tuple(bad if first else ()),
    )


def _variables(
    state: GradientState, gradient_bytes: Sequence[int]
) -> tuple[VariableGradient, ...]:
    rows = state.read_rows()  # none without per-variable statistics
    figures = zip(state.paths, state.sizes, gradient_bytes, rows, strict=False)
    records = [sums.variable_record(*each) for each in figures]
    return tuple(record for record in records if record is not None)


_Plan = tuple[list[range], list[int], Callable[[Any], Any]]


class GradientTally:
    """Watches the updates of one `fit`.

    Args:
        model: the compiled model.
        every: number of updates between two with per-variable statistics, from 1; 0
            for no such statistics.
    """

    def __init__(self, model: Any, every: int) -> None:
        self._model = model
        self._every = every
        self._backend = backends.current()
        self._meter = self._backend.gradient_meter(compiled=model.jit_compile is True)
        self._state: GradientState | None = None
        # Of steps that run eagerly; in a trace the state tells.
        self._updates, self._was_sampled = 0, model.built
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._dense_bytes: list[int] = []
        self._is_lean = False
        self._lean_step: LeanStep | None = None
        if self._every > MEASURING_STEPS and self._backend.branches_cost(
            compiled=model.jit_compile is True
        ):
            self._lean_step = LeanStep(model, self._without_rows, every)
        if model.built:
            self._prepare(in_step=False)
        self._get_off = register_state(model.optimizer, self.keep)

    def observe(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Callable[[], None] | None:
        """Add one update; return what to call when the variables have been updated.

        Called while the step is traced, or in it where it runs eagerly.
        """
        if self._lean_step is not None and self._backend.draws_in_trace():
            self._lean_step.keep_to_one()
        with self._backend.inference():
            state = self._prepare(in_step=True)
            due = self._due(state)
            groups, order, place = self._planned(state, variables)
            step = MeasuredStep(gradients, self._meter, groups)
            sparse_bytes = self._sparse_bytes(gradients, order)
            squares = place(step.squared_norms())
            sampled = _as_number(due.statistics)
            state.add_step(squares, sparse_bytes, sampled)
            if not due.any():
                return None
            step.look(due.statistics)
        is_updated = [index < len(gradients) for index in order]

        def finish() -> None:
            with self._backend.inference():
                state.add_rows(due, lambda: place(step.statistics()), is_updated)

        return finish

    def observe_finite(self, finite: Any) -> None:
        """Count one step as skipped if its gradient was not finite."""
        with self._backend.inference():
            self._prepare(in_step=True).add_skipped(finite)

    def clear(self) -> None:
        """Start a new epoch."""
        self._was_sampled = self._was_sampled and not self._updates
        self._updates = 0
        if self._state is not None:
            self._state.clear()
        if self._lean_step is not None:
            self._lean_step.start_epoch()

    def read(self, epoch: int) -> GradientReading | None:
        """Return the figures since `clear()`, None if no step was seen."""
        if self._state is None:
            return None
        # Loss scaling may have skipped every step so far.
        dense_bytes = self._dense_bytes or [0] * len(self._state.paths)
        return read_epoch(epoch, self._state, self._every, dense_bytes)

    def keep(self) -> Callable[[], None]:
        """Return what takes all back that is counted from now on."""
        counts, state, lean = (
            (self._updates, self._was_sampled),
            self._state and self._state.keep(),
            self._lean_step and self._lean_step.keep(),
        )

        def take_back() -> None:
            self._updates, self._was_sampled = counts
            if state is not None:
                state()
            elif self._state is not None:  # it came since
                self._state.clear()
            if lean is not None:
                lean()

        return take_back

    def release(self) -> None:
        """Take the state out of the optimizer."""
        with ExitStack() as everything:  # also if a part of it fails
            if self._state is not None:
                everything.callback(self._state.release)
            everything.callback(self._get_off)

    def _without_rows(self, step: Callable[[], Any]) -> Any:
        # A step is traced when it is first called.
        self._is_lean = True
        try:
            return step()
        finally:
            self._is_lean = False

    def _prepare(self, *, in_step: bool) -> GradientState:
        # A subclassed model has no variables before its first step on TensorFlow.
        if self._state is None:
            self._state = GradientState(
                self._model.optimizer,
                self._model.trainable_variables,
                self._meter if self._every else None,
                in_step=in_step,
            )
        return self._state

    def _due(self, state: GradientState) -> Due:
        if not self._every or self._is_lean:
            return Due(statistics=False, changes=False)
        if not self._backend.runs_eagerly:
            return state.due(self._every)
        due = Due(self._updates % self._every == 0, self._was_sampled)
        self._updates += 1
        self._was_sampled = due.statistics
        return due

    def _planned(self, state: GradientState, variables: Sequence[Any]) -> _Plan:
        key = tuple(map(id, variables))
        if key not in self._plans:
            in_one = self._backend.runs_eagerly  # there are no branches
            groups = [range(len(variables))] if in_one else neighbors(variables)
            order = state.order(variables)
            self._plans[key] = groups, order, placing(order)
        return self._plans[key]

    def _sparse_bytes(self, gradients: Sequence[Any], order: Sequence[int]) -> Any:
        """Return the bytes of each sparse gradient, or None; note those of the rest."""
        sizes = [*map(self._meter.size_bytes, gradients), 0]
        sizes = [sizes[index] for index in order]
        self._dense_bytes = [size if isinstance(size, int) else 0 for size in sizes]
        if all(isinstance(size, int) for size in sizes):
            return None
        zero = ops.zeros((), "float32")
        return ops.stack([zero if isinstance(size, int) else size for size in sizes])


def _as_number(condition: Any) -> Any:
    if isinstance(condition, bool):
        return float(condition)
    return ops.cast(condition, "float32")
