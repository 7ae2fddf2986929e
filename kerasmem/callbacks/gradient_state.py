"""What a `GradientTally` has riding in the training step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from kerasmem import backends
from kerasmem.callbacks import gradient_sums as sums


class GradientState:
    """The two arrays of `gradient_sums`, and whose their figures are.

    Args:
        optimizer: the optimizer that they ride with.
        variables: the variables that it updates.
        with_rows: whether there shall be a row per variable.
    """

    def __init__(
        self, optimizer: Any, variables: Sequence[Any], *, with_rows: bool
    ) -> None:
        step_state = backends.current().step_state
        self.paths = [variable.path for variable in variables]
        self.sizes = [math.prod(variable.shape) for variable in variables]
        self._place_of = {id(variable): i for i, variable in enumerate(variables)}
        start = sums.no_steps(len(variables))
        self._vector = step_state(optimizer, start, "kerasmem_gradient_steps")
        self.own_bytes = start.nbytes
        self._rows: backends.StepState | None = None
        if with_rows:
            start = sums.no_rows(len(variables))
            self._rows = step_state(optimizer, start, "kerasmem_gradient_rows")
            self.own_bytes += start.nbytes

    def order(self, variables: Sequence[Any]) -> list[int]:
        """Return for each of its own variables where it is among `variables`.

        One that is not among them is said to stand behind the last.
        """
        given = {self._place_of.get(id(v)): index for index, v in enumerate(variables)}
        return [given.get(place, len(variables)) for place in range(len(self.paths))]

    @property
    def steps(self) -> Any:
        """Number of updates before this one, a scalar tensor."""
        return self._vector.variable.value[sums.STEPS]

    def add_step(self, squared_norms: Any, sparse_bytes: Any) -> None:
        """Add an update, see `gradient_sums.with_step`."""
        vector = self._vector.variable
        value = ops.convert_to_tensor(vector)
        vector.assign(sums.with_step(value, squared_norms, sparse_bytes))

    def add_skipped(self, finite: Any) -> None:
        """Add a step that was skipped unless `finite`."""
        vector = self._vector.variable
        vector.assign(sums.with_skipped(ops.convert_to_tensor(vector), finite))

    def add_rows(self, statistics: Any, changes: Any) -> None:
        """Add a sampled step, see `gradient_sums.with_rows`."""
        if self._rows is not None:
            rows = self._rows.variable
            value = ops.convert_to_tensor(rows)
            rows.assign(sums.with_rows(value, statistics, changes))

    def read_vector(self) -> list[float]:
        """Return the figures of all steps; call it between epochs only."""
        return self._vector.read().tolist()

    def read_rows(self) -> list[list[float]]:
        """Return the figures of the sampled ones; call it between epochs only."""
        return [] if self._rows is None else self._rows.read().tolist()

    def clear(self) -> None:
        """Start a new epoch."""
        self._vector.write(sums.no_steps(len(self.paths)))
        if self._rows is not None:
            self._rows.write(sums.no_rows(len(self.paths)))

    def release(self) -> None:
        """Take it out of the optimizer."""
        self._vector.release()
        if self._rows is not None:
            self._rows.release()


def placing(order: Sequence[int]) -> Callable[[Any], Any]:
    """Return what puts an entry, or row, per given variable in the state's order.

    Args:
        order: what `GradientState.order` returned.
    """
    is_in_place = order == list(range(len(order)))

    def place(entries: Any) -> Any:
        if is_in_place and entries.shape[0] == len(order):
            return entries
        padded = ops.concatenate([entries, ops.zeros_like(entries[:1])])
        return ops.take(padded, np.array(order, "int32"), axis=0)

    return place
