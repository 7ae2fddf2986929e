"""What a `GradientTally` has riding in the training step."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.backends import GradientMeter
from kerasmem.callbacks import gradient_sums as sums
from kerasmem.callbacks.measured_step import UpdateSample, if_due


@dataclass(frozen=True)
class Due:
    """What is due in a step: a bool each, where the step is compiled a tensor.

    Args:
        statistics: whether the step is sampled.
        changes: whether the step before was, or there is none.
    """

    statistics: Any
    changes: Any

    def any(self) -> bool:
        """Return False if nothing is due, whatever a tensor holds."""
        return not (self.statistics is False and self.changes is False)


class GradientState:
    """The two arrays of `gradient_sums`, and whose their figures are.

    A third one has some entries of the variables as they were at first, then as the
    latest update left them: how far the next update moves them is seen when it is
    done. To look before and after an update would have XLA copy variables that it
    otherwise updates in place.

    Args:
        optimizer: the optimizer that they ride with.
        variables: the variables that it updates.
        meter: what measures the variables; None for no row per variable.
        in_step: whether a step is being traced already.
    """

    def __init__(
        self,
        optimizer: Any,
        variables: Sequence[Any],
        meter: GradientMeter | None,
        *,
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
        if meter:
            start = sums.no_rows(len(variables))
            self._rows = step_state(optimizer, start, "kerasmem_gradient_rows")
            self._sample = UpdateSample(variables, meter)
            entries = np.zeros(self._sample.size, "float32")
            if not in_step:
                entries = keras.ops.convert_to_numpy(
                    self._sample.join(self._sample.parts())
                )
            self._entries = step_state(optimizer, entries, "kerasmem_gradient_entries")
            self.own_bytes += start.nbytes + entries.nbytes

    def order(self, variables: Sequence[Any]) -> list[int]:
        """Return for each of its own variables where it is among `variables`.

        One that is not among them is said to stand behind the last.
        """
        given = {self._place_of.get(id(v)): index for index, v in enumerate(variables)}
        return [given.get(place, len(variables)) for place in range(len(self.paths))]

    def due(self, every: int) -> Due:
        """Return what is due in a step that is being traced."""
        vector = self._vector.variable.value
        # Not a constant even for 1: XLA would merge what is measured into what makes
        # the gradient and the update, and do these twice.
        place = keras.ops.mod(vector[sums.STEPS], every)
        return Due(keras.ops.equal(place, 0), vector[sums.SAMPLED] > 0.0)

    def add_step(self, squared_norms: Any, sparse_bytes: Any, sampled: Any) -> None:
        """Add an update, see `gradient_sums.with_step`."""
        vector = self._vector.variable
        vector.assign(
            sums.with_step(vector.value, squared_norms, sparse_bytes, sampled)
        )

    def add_skipped(self, finite: Any) -> None:
        """Add a step that was skipped unless `finite`."""
        vector = self._vector.variable
        vector.assign(sums.with_skipped(vector.value, finite))

    def add_rows(
        self, due: Due, statistics: Callable[[], Any], is_updated: Sequence[bool]
    ) -> None:
        """Add what is due to the rows; call it when the update is done.

        Args:
            due: what is.
            statistics: makes the rows that `gradient_sums.with_statistics` wants.
            is_updated: whether each variable was updated.
        """
        if self._rows is None:
            return
        rows, entries = self._rows.variable, self._entries.variable
        old, before = rows.value, entries.value
        summed = if_due(
            due.statistics,
            lambda: sums.with_statistics(old, statistics()),
            lambda: old,
        )

        # Outside of the branch: for one that reads variables TensorFlow would keep what
        # their update needs, two and a half times their size.
        parts = self._sample.parts()
        is_wanted = due.statistics | due.changes
        after = if_due(is_wanted, lambda: self._sample.join(parts), lambda: before)

        def with_changes() -> Any:
            changes = self._sample.changes(before, after)
            if not all(is_updated):
                # Then there is no ratio: 0 / 0.
                mask = np.array(is_updated, "float32")[:, None]
                changes = keras.ops.multiply(changes, mask)
            return sums.with_changes(summed, changes)

        rows.assign(if_due(due.changes, with_changes, lambda: summed))
        entries.assign(after)

    def read_vector(self) -> list[float]:
        """Return the figures of all steps; call it between epochs only."""
        return self._vector.read().tolist()

    def read_rows(self) -> list[list[float]]:
        """Return the figures of the sampled ones; call it between epochs only."""
        return [] if self._rows is None else self._rows.read().tolist()

    def clear(self) -> None:
        """Start a new epoch."""
        # Between epochs anybody may change the weights.
        sampled, self._is_first_epoch = float(self._is_first_epoch), False
        self._vector.write(sums.no_steps(len(self.paths), sampled=sampled))
        if self._rows is not None:
            self._rows.write(sums.no_rows(len(self.paths)))

    def keep(self) -> Callable[[], None]:
        """Return what puts the figures back to what they are now.

        Call it between steps, and not on JAX, where they are the optimizer's.
        """
        states = self._states()
        values = [state.read() for state in states]

        def put_back() -> None:
            for state, value in zip(states, values, strict=True):
                state.write(value)

        return put_back

    def release(self) -> None:
        """Take it out of the optimizer."""
        with ExitStack() as everything:  # also if a part of it fails
            for state in self._states():
                everything.callback(state.release)

    def _states(self) -> list[backends.StepState]:
        return [self._vector] + (
            [] if self._rows is None else [self._rows, self._entries]
        )


def placing(order: Sequence[int]) -> Callable[[Any], Any]:
    """Return what puts an entry, or row, per given variable in the state's order.

    Args:
        order: what `GradientState.order` returned.
    """
    is_in_place = order == list(range(len(order)))

    def place(entries: Any) -> Any:
        if is_in_place and entries.shape[0] == len(order):
            return entries
        ops = backends.current().ops
        padded = ops.concatenate([entries, ops.zeros_like(entries[:1])])
        return ops.take(padded, order, axis=0)

    return place
