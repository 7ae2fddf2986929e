"""Adding up, inside the training step, what an epoch's gradients looked like."""

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from kerasmem import backends
from kerasmem.callbacks.gradient_reading import GradientReading, read_epoch
from kerasmem.callbacks.gradient_state import GradientState, placing
from kerasmem.callbacks.measured_step import MeasuredStep, Plan

Placing = Callable[[Any], Any]


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
        self._updates = 0  # counted where the step runs eagerly
        self._plans: dict[tuple[int, ...], tuple[Plan, list[int], Placing]] = {}
        self._dense_bytes: list[int] = []
        if model.built:
            self._prepare()

    def observe(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Callable[[], None] | None:
        """Add one update; return what to call when the variables have been updated.

        Called while the step is traced, or in it where it runs eagerly.
        """
        with self._backend.inference():
            state = self._prepare()
            is_due = self._is_due(state)
            plan, order, place = self._planned(state, variables)
            step = MeasuredStep(gradients, plan)
            sparse_bytes = self._sparse_bytes(gradients, order)
            state.add_step(place(step.squared_norms()), sparse_bytes)
            if is_due is False:
                return None
            statistics = place(step.statistics(is_due))

        def finish() -> None:
            with self._backend.inference():
                state.add_rows(statistics, place(step.changes(is_due)))

        return finish

    def observe_finite(self, finite: Any) -> None:
        """Count one step as skipped if its gradient was not finite."""
        with self._backend.inference():
            self._prepare().add_skipped(finite)

    def clear(self) -> None:
        """Start a new epoch."""
        self._updates = 0
        if self._state is not None:
            self._state.clear()

    def read(self, epoch: int) -> GradientReading | None:
        """Return the figures since `clear()`, None if no step was seen."""
        if self._state is None:
            return None
        # Loss scaling may have skipped every step so far.
        dense_bytes = self._dense_bytes or [0] * len(self._state.paths)
        return read_epoch(epoch, self._state, self._every, dense_bytes)

    def release(self) -> None:
        """Take the state out of the optimizer."""
        if self._state is not None:
            self._state.release()

    def _prepare(self) -> GradientState:
        # A subclassed model has no variables before its first step on TensorFlow.
        if self._state is None:
            self._state = GradientState(
                self._model.optimizer,
                self._model.trainable_variables,
                with_rows=self._every > 0,
            )
        return self._state

    def _is_due(self, state: GradientState) -> Any:
        if not self._every:
            return False
        if self._backend.runs_eagerly:
            self._updates += 1
            return (self._updates - 1) % self._every == 0
        return ops.equal(ops.mod(state.steps, self._every), 0)

    def _planned(
        self, state: GradientState, variables: Sequence[Any]
    ) -> tuple[Plan, list[int], Placing]:
        key = tuple(map(id, variables))
        if key not in self._plans:
            plan = Plan(variables, self._meter, in_one=self._backend.runs_eagerly)
            order = state.order(variables)
            self._plans[key] = plan, order, placing(order)
        return self._plans[key]

    def _sparse_bytes(self, gradients: Sequence[Any], order: Sequence[int]) -> Any:
        """Return the bytes of each sparse gradient; note those of the dense ones."""
        sizes = [*map(self._meter.size_bytes, gradients), 0]
        sizes = [sizes[index] for index in order]
        self._dense_bytes = [size if isinstance(size, int) else 0 for size in sizes]
        if all(isinstance(size, int) for size in sizes):
            return ops.zeros((len(sizes),), "float32")
        zero = ops.zeros((), "float32")
        return ops.stack([zero if isinstance(size, int) else size for size in sizes])
