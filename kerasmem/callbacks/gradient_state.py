"""Gradient statistics of an epoch, stored as state of the training step."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.callbacks import gradient_sums as sums
from kerasmem.records import GradientRecord, VariableGradient
from kerasmem.types import Optimizer


def if_due(
    is_due: Any, compute: Callable[[], Any], otherwise: Callable[[], Any]
) -> Any:
    """Return `compute()` if a boolean or boolean tensor is true, else `otherwise()`."""
    if isinstance(is_due, bool):
        return compute() if is_due else otherwise()
    return keras.ops.cond(is_due, compute, otherwise)


def _select(is_due: Any, compute: Callable[[], Any], otherwise: Any) -> Any:
    if isinstance(is_due, bool):
        return compute() if is_due else otherwise
    return keras.ops.where(is_due, compute(), otherwise)


@dataclass(frozen=True)
class GradientReading:
    """The record of one epoch, its skipped steps and its first nonfinite update."""

    record: GradientRecord
    skipped_steps: int
    first_nonfinite: int | None
    nonfinite_paths: tuple[str, ...]


class GradientState:
    """The arrays of `gradient_sums` and their assignment to variables.

    A third array has sampled entries of the variables before the next update, so the
    next step can measure the size of an update. Reading before and after one update
    would force XLA to copy variables that are otherwise updated in place.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        variables: Sequence[Any],
        *,
        has_rows: bool,
        in_step: bool,
    ) -> None:
        step_state = backends.current().step_state
        self.paths = [variable.path for variable in variables]
        self.sizes = [math.prod(variable.shape) for variable in variables]
        self._place_of = {id(variable): i for i, variable in enumerate(variables)}
        self._is_first_epoch = not in_step
        start = sums.no_steps(len(variables), sampled=float(not in_step))
        self._vector = step_state(optimizer, start, "kerasmem_gradient_steps")
        self.own_bytes = start.nbytes
        self._rows: backends.StepState | None = None
        if has_rows:
            start = sums.no_rows(len(variables))
            self._rows = step_state(optimizer, start, "kerasmem_gradient_rows")
            self._sample = sums.UpdateSample(variables)
            entries = np.zeros(self._sample.size, "float32")
            if not in_step:
                entries = self._sample.current()
            self._entries = step_state(optimizer, entries, "kerasmem_gradient_entries")
            self.own_bytes += start.nbytes + entries.nbytes

    def order(self, variables: Sequence[Any]) -> list[int]:
        """Return the index in `variables` of each variable of this state.

        A missing variable gets the index `len(variables)`. If all are missing, raises
        `ValueError`.
        """
        index_by_place = {
            self._place_of.get(id(v)): index for index, v in enumerate(variables)
        }
        if set(index_by_place) <= {None}:
            raise ValueError("The update has no trainable variable of the model.")
        return [
            index_by_place.get(place, len(variables))
            for place in range(len(self.paths))
        ]

    def is_due(self, every: int) -> tuple[Any, Any]:
        """Return whether the traced step and the step before are sampled."""
        vector = self._vector.variable.value
        # Never a constant, not even for 1: XLA would fuse the measurement with the
        # gradient and the update, and compute them twice.
        place = keras.ops.mod(vector[sums.STEPS], every)
        return keras.ops.equal(place, 0), vector[sums.SAMPLED] > 0.0

    def add_step(self, squared_norms: Any, sampled: Any) -> None:
        """Add an update, see `gradient_sums.with_step`."""
        vector = self._vector.variable
        vector.assign(sums.with_step(vector.value, squared_norms, sampled))

    def add_rows(
        self,
        is_sampled: Any,
        was_sampled: Any,
        statistics: Callable[[], Any],
        is_updated: Sequence[bool],
    ) -> None:
        """Add the statistics of a sampled step to the rows, after the update.

        `is_sampled` and `was_sampled` (the previous step) are boolean tensors in a
        compiled step. `statistics` returns rows for `gradient_sums.with_statistics`.
        """
        if self._rows is None:
            return
        rows, entries = self._rows.variable, self._entries.variable
        old, before = rows.value, entries.value
        # Few numbers, so a selection costs less than a branch, which XLA compiles.
        new_rows = _select(
            is_sampled, lambda: sums.with_statistics(old, statistics()), old
        )

        # Outside the branch: for a branch that reads variables, TensorFlow would
        # allocate two and a half times their size.
        current = self._sample.read()

        def measure() -> tuple[Any, Any]:
            return current, self._sample.changes(before, current)

        is_wanted = is_sampled | was_sampled
        none = np.zeros((len(self.paths), 2), "float32")
        after, changes = if_due(
            is_wanted, measure, lambda: (before, keras.ops.convert_to_tensor(none))
        )

        def with_changes() -> Any:
            # The ratio 0 / 0 is not finite and is not counted.
            mask = np.array(is_updated, "float32")[:, None]
            norms = changes if all(is_updated) else keras.ops.multiply(changes, mask)
            return sums.with_changes(new_rows, norms)

        rows.assign(_select(was_sampled, with_changes, new_rows))
        entries.assign(after)

    def read_epoch(
        self, epoch: int, every: int, skipped: int
    ) -> GradientReading | None:
        """Return the statistics of an epoch, or None if there was no step.

        Must be called between epochs.
        """
        vector: list[float] = self._vector.read().tolist()
        first_bad = vector[sums.HEAD :]
        steps = round(vector[sums.STEPS])
        if not steps + skipped:
            return None
        nonfinite = round(vector[sums.NONFINITE])
        first_norm, last = vector[sums.FIRST], vector[sums.LAST]
        finite = steps - nonfinite
        record = GradientRecord(
            epoch=epoch,
            steps=steps,
            norm=vector[sums.NORM] / finite if finite else math.nan,
            norm_max=vector[sums.LARGEST] if finite else math.nan,
            nonfinite_steps=nonfinite + skipped,
            variables=self._variables(),
            norm_last=last if steps and math.isfinite(last) else math.nan,
            norm_first=first_norm if steps and math.isfinite(first_norm) else math.nan,
            sampled_steps=tuple(range(0, steps, every) if every else ()),
            own_bytes=self.own_bytes,
            time=time.time(),
        )
        first = min((number for number in first_bad if number), default=0.0)
        bad = [p for p, n in zip(self.paths, first_bad, strict=True) if first == n]
        return GradientReading(
            record=record,
            skipped_steps=skipped,
            first_nonfinite=round(first) - 1 if first else None,
            nonfinite_paths=tuple(bad if first else ()),
        )

    def _variables(self) -> tuple[VariableGradient, ...]:
        if self._rows is None:
            return ()
        rows = self._rows.read().tolist()
        figures = zip(self.paths, self.sizes, rows, strict=True)
        records = [sums.variable_record(*each) for each in figures]
        return tuple(record for record in records if record is not None)

    def clear(self) -> None:
        """Reset the statistics at the start of an epoch."""
        # Weights may change between epochs, so the old entries are only valid once.
        is_sampled, self._is_first_epoch = float(self._is_first_epoch), False
        self._vector.write(sums.no_steps(len(self.paths), sampled=is_sampled))
        if self._rows is not None:
            self._rows.write(sums.no_rows(len(self.paths)))

    def keep(self) -> Callable[[], None]:
        """Return a function that restores the current statistics.

        Call only between steps. Not for JAX, where the optimizer holds the arrays.
        """
        states = self._states()
        values = [state.read() for state in states]

        def put_back() -> None:
            for state, value in zip(states, values, strict=True):
                state.write(value)

        return put_back

    def release(self) -> None:
        """Remove the arrays from the optimizer."""
        with ExitStack() as everything:  # releases every state even if one raises
            for state in self._states():
                everything.callback(state.release)

    def _states(self) -> list[backends.StepState]:
        return [self._vector] + (
            [] if self._rows is None else [self._rows, self._entries]
        )


def placing(order: Sequence[int]) -> Callable[[Any], Any]:
    """Return a function that reorders entries or rows by `GradientState.order`."""
    is_in_place = order == list(range(len(order)))

    def place(entries: Any) -> Any:
        if is_in_place and entries.shape[0] == len(order):
            return entries
        ops = backends.current().ops
        with_zero = ops.concatenate([entries, ops.zeros_like(entries[:1])])
        return ops.take(with_zero, order, axis=0)

    return place
