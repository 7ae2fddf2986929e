"""Adding up, inside the training step, what an epoch's gradients looked like."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import keras
from keras import ops

from kerasmem import backends
from kerasmem.backends.gradients import scales_loss
from kerasmem.backends.steps import keras_function_of
from kerasmem.backends.variables import register_state
from kerasmem.callbacks import gradient_sums as sums
from kerasmem.callbacks.gradient_state import (
    GradientReading,
    GradientState,
    if_due,
    placing,
)


class _Layout(NamedTuple):
    """How the gradients of an update are measured, and where their figures belong.

    Args:
        groups: indices of the gradients that one branch reads.
        order: for each variable of the state the index of its gradient.
        place: puts an entry, or row, per gradient in the state's order.
    """

    groups: list[range]
    order: list[int]
    place: Callable[[Any], Any]


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
        self._layouts: dict[tuple[int, ...], _Layout] = {}
        self._dense_bytes: list[int] = []
        self._is_lean = False
        self._uninstrumented: UninstrumentedStep | None = None
        if self._every > MEASURING_STEPS and self._backend.branches_cost(
            compiled=model.jit_compile is True
        ):
            self._uninstrumented = UninstrumentedStep(model, self._without_rows, every)
        if model.built:
            self._prepare(in_step=False)
        self._get_off = register_state(model.optimizer, self.keep)

    def observe(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Callable[[], None] | None:
        """Add one update; return what to call when the variables have been updated.

        Called while the step is traced, or in it where it runs eagerly.
        """
        if self._uninstrumented is not None and self._backend.draws_in_trace():
            self._uninstrumented.keep_to_one()
        with self._backend.inference():
            state = self._prepare(in_step=True)
            gradients = self._backend.complete_gradients(gradients, variables)
            is_sampled, was_sampled = self._due(state)
            groups, order, place = self._layout(state, variables)
            # A branch waits for all that it reads, so there are several, each of few
            # gradients: else all of them would be kept until the last one is known.
            parts = [[gradients[i] for i in group] for group in groups]
            squares = [self._meter.squared_norms(part) for part in parts]
            squared_norms = self._backend.ops.concatenate(squares)
            sparse_bytes = self._sparse_bytes(gradients, order)
            state.add_step(place(squared_norms), sparse_bytes, _as_number(is_sampled))
            if is_sampled is False and was_sampled is False:
                return None
            figures = [
                if_due(
                    is_sampled,
                    partial(self._meter.statistics, part, own_squares),
                    partial(_zeros, is_sampled, len(part)),
                )
                for part, own_squares in zip(parts, squares, strict=True)
            ]
        is_updated = [index < len(gradients) for index in order]

        def statistics() -> Any:
            joined = self._backend.ops.concatenate(figures)
            return place(sums.statistics_of(squared_norms, joined))

        def finish() -> None:
            with self._backend.inference():
                state.add_rows(is_sampled, was_sampled, statistics, is_updated)

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
        if self._uninstrumented is not None:
            self._uninstrumented.start_epoch()

    def read(self, epoch: int) -> GradientReading | None:
        """Return the figures since `clear()`, None if no step was seen."""
        if self._state is None:
            return None
        # Loss scaling may have skipped every step so far.
        dense_bytes = self._dense_bytes or [0] * len(self._state.paths)
        return self._state.read_epoch(epoch, self._every, dense_bytes)

    def keep(self) -> Callable[[], None]:
        """Return what takes all back that is counted from now on."""
        counts, state, lean = (
            (self._updates, self._was_sampled),
            self._state and self._state.keep(),
            self._uninstrumented and self._uninstrumented.keep(),
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

    def _due(self, state: GradientState) -> tuple[Any, Any]:
        """Return whether this update, and whether the one before, is sampled.

        A bool each, where the step is compiled a boolean tensor.
        """
        if not self._every or self._is_lean:
            return False, False
        if not self._backend.runs_eagerly:
            return state.is_due(self._every)
        due = self._updates % self._every == 0, self._was_sampled
        self._updates += 1
        self._was_sampled = due[0]
        return due

    def _layout(self, state: GradientState, variables: Sequence[Any]) -> _Layout:
        key = tuple(map(id, variables))
        if key not in self._layouts:
            in_one = self._backend.runs_eagerly  # there are no branches
            groups = [range(len(variables))] if in_one else neighbors(variables)
            order = state.order(variables)
            self._layouts[key] = _Layout(groups, order, placing(order))
        return self._layouts[key]

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


_FIGURES = 3  # what `GradientMeter.statistics` tells of a gradient


def _zeros(is_due: Any, rows: int) -> Any:
    # Not as a constant: TensorFlow would keep it in memory for good.
    zero = ops.cast(is_due, "float32")
    return ops.broadcast_to(zero, (rows, _FIGURES))


def neighbors(variables: Sequence[Any]) -> list[range]:
    """Return variables in groups that are little larger than the largest of all."""
    sizes = [math.prod(variable.shape) for variable in variables]
    limit = 1.25 * max(sizes)  # room for a bias beside each of many equal kernels
    groups: list[range] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            groups.append(range(start, index))
            start, total = index, 0
        total += size
    return [*groups, range(start, len(sizes))]


MEASURING_STEPS = 2
"""Behind a step that measures comes one that sees how far the update went."""


class UninstrumentedStep:
    """Stands in for a step that XLA compiles; most calls run one without branches.

    A branch that is not taken costs too: XLA keeps in memory what it reads, and waits
    for a GPU to know that it is not. The version without branches is compiled when it
    is first needed.

    Args:
        model: the model of the running `fit`.
        without: called with a step, runs it as one that has nothing to measure.
        every: number of calls from one that measures to the next.

    Attributes:
        versions: the two compiled steps.
        latest: that of them that ran last.
    """

    def __init__(
        self,
        model: Any,
        without: Callable[[Callable[[], Any]], Any],
        every: int,
    ) -> None:
        self._model = model
        self._without = without
        self._every = every
        self.versions: tuple[Any, ...] = ()
        self.latest: Any = None
        self._calls = 0
        self._is_one = False

    def start_epoch(self) -> None:
        """Take the model's training step over; the first call of an epoch measures."""
        self._calls = 0
        model = self._model
        whole = model.train_function
        # One of another monitor counts for itself, and `kerasmem.fit` may run parts of
        # batches; then this one keeps its branches.
        if not isinstance(whole, FunctionType) or not _has_one_update(model):
            return
        # Of a function of its own: JAX remembers what it traced by the method it is
        # given.
        another = keras_function_of(model, "train", partial(model.train_step))
        self.versions = whole, another
        self.latest, model.train_function = whole, self

    def keep(self) -> Callable[[], None]:
        """Return what sets the count of calls back to what it is now."""
        calls = self._calls

        def put_back() -> None:
            self._calls = calls

        return put_back

    def keep_to_one(self) -> None:
        """Run the step that measures only: from two, its draws would be others."""
        self._is_one = True

    def __call__(self, *arguments: Any) -> Any:
        """Run one training step."""
        place, self._calls = self._calls % self._every, self._calls + 1
        if place < MEASURING_STEPS or self._is_one:
            self.latest = self.versions[0]
            return self.latest(*arguments)
        self.latest = self.versions[1]
        return self._without(lambda: self.latest(*arguments))


def _has_one_update(model: Any) -> bool:
    """Return True if it is sure that each call of the step is one update."""
    return (
        type(model).train_step is keras.Model.train_step
        and model.steps_per_execution == 1
        and not model.run_eagerly
        and not model.optimizer.gradient_accumulation_steps
        and not scales_loss(model.optimizer)
        and not isinstance(model.optimizer, keras.optimizers.MultiOptimizer)
    )
