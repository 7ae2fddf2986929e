"""Accumulation of gradient statistics inside the training step."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from keras import ops

from kerasmem import backends
from kerasmem.backends.gradients import MOST_ENTRIES
from kerasmem.backends.variables import register_state
from kerasmem.callbacks import gradient_sums as sums
from kerasmem.callbacks.gradient_state import (
    GradientReading,
    GradientState,
    if_due,
    placing,
)
from kerasmem.types import Model


class _Layout(NamedTuple):
    """Groups of gradients per branch, and their order in the state."""

    groups: list[list[int]]
    order: list[int]
    place: Callable[[Any], Any]


class GradientTally:
    """Measures the updates of one `fit`, without per-variable rows if `every` is 0."""

    def __init__(self, model: Model, every: int) -> None:
        self._model = model
        self._every = every
        self._backend = backends.current()
        self._state: GradientState | None = None
        # For eager steps only; in a trace the state has both values.
        self._updates, self._was_sampled = 0, model.built
        self._layouts: dict[tuple[int, ...], _Layout] = {}
        if model.built:
            self._prepare(in_step=False)
        self._get_off = register_state(model.optimizer, self.keep)

    def observe(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Callable[[], None] | None:
        """Add one update and return a function to call after it, or None.

        Called while the step is traced, or in every eager step.
        """
        with self._backend.inference():
            state = self._prepare(in_step=True)
            gradients = self._backend.complete_gradients(gradients, variables)
            is_sampled, was_sampled = self._due(state)
            groups, order, place = self._layout(state, variables)
            # A branch needs all its inputs at once. Small groups keep few gradients in
            # memory until their branch runs.
            parts = [
                self._backend.joined([gradients[i] for i in group]) for group in groups
            ]
            squares = [self._backend.squared_norms(part) for part in parts]
            squared_norms = self._backend.ops.concatenate(squares)
            state.add_step(place(squared_norms), _as_number(is_sampled))
            if is_sampled is False and was_sampled is False:
                return None
            figures = [
                if_due(
                    is_sampled,
                    partial(self._backend.gradient_statistics, part),
                    partial(_zeros, is_sampled, len(part.order)),
                )
                for part in parts
            ]
        is_updated = [index < len(gradients) for index in order]

        def statistics() -> Any:
            all_figures = self._backend.ops.concatenate(figures)
            return place(sums.statistics_of(squared_norms, all_figures))

        def finish() -> None:
            with self._backend.inference():
                state.add_rows(is_sampled, was_sampled, statistics, is_updated)

        return finish

    def clear(self) -> None:
        """Reset the statistics at the start of an epoch."""
        self._was_sampled = self._was_sampled and not self._updates
        self._updates = 0
        if self._state is not None:
            self._state.clear()

    def read(self, epoch: int, skipped: int) -> GradientReading | None:
        """Return the statistics since `clear()`, or None if there was no step."""
        if self._state is None:
            return None
        return self._state.read_epoch(epoch, self._every, skipped)

    def keep(self) -> Callable[[], None]:
        """Return a function that discards everything counted after this call."""
        counts = self._updates, self._was_sampled
        state = self._state and self._state.keep()

        def take_back() -> None:
            self._updates, self._was_sampled = counts
            if state is not None:
                state()
            elif self._state is not None:  # created after this call
                self._state.clear()

        return take_back

    def release(self) -> None:
        """Remove the state from the optimizer."""
        with ExitStack() as everything:  # runs all callbacks even if one raises
            if self._state is not None:
                everything.callback(self._state.release)
            everything.callback(self._get_off)

    def _prepare(self, *, in_step: bool) -> GradientState:
        # On TensorFlow, a subclassed model has no variables before its first step.
        if self._state is None:
            self._state = GradientState(
                self._model.optimizer,
                self._model.trainable_variables,
                has_rows=self._every > 0,
                in_step=in_step,
            )
        return self._state

    def _due(self, state: GradientState) -> tuple[Any, Any]:
        """Return whether this update and the one before are sampled.

        Both are booleans, or boolean tensors in a compiled step.
        """
        if not self._every:
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
            in_one = self._backend.runs_eagerly  # eager steps have no branches
            groups = [[*range(len(variables))]] if in_one else neighbors(variables)
            order = state.order([variables[i] for group in groups for i in group])
            self._layouts[key] = _Layout(groups, order, placing(order))
        return self._layouts[key]


def _as_number(condition: Any) -> Any:
    if isinstance(condition, bool):
        return float(condition)
    return ops.cast(condition, "float32")


_FIGURES = 3  # values per gradient from `gradient_statistics`

_LEAST_LIMIT = 1 << 20
"""Entries that a group may always have, 4 MiB. Each group is a branch to compile."""


def _zeros(is_due: Any, rows: int) -> Any:
    # Not a constant, because TensorFlow would never free its memory.
    zero = ops.cast(is_due, "float32")
    return ops.broadcast_to(zero, (rows, _FIGURES))


def neighbors(variables: Sequence[Any]) -> list[list[int]]:
    """Group variables, small ones first, up to about the size of the largest."""
    sizes = [math.prod(variable.shape) for variable in variables]
    # The factor includes the biases of many equal kernels.
    limit = max(_LEAST_LIMIT, 1.25 * max(sizes))
    groups: list[list[int]] = [[]]
    total = 0
    # Small gradients share their reductions, so they belong in one group.
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i] > MOST_ENTRIES):
        if groups[-1] and total + sizes[index] > limit:
            groups.append([])
            total = 0
        groups[-1].append(index)
        total += sizes[index]
    return groups
