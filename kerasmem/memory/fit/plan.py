"""Chooses the number of micro-batches and rolls back failed steps."""

import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kerasmem.backends import device_kind
from kerasmem.backends.steps import Step, Steps
from kerasmem.errors import ConfigError
from kerasmem.graph.activation_policy import policy_of
from kerasmem.graph.layers import has_own_step
from kerasmem.graph.values import held_bytes
from kerasmem.memory.batch_size import find_batch_size
from kerasmem.memory.batch_size.trial import USABLE
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.variables import accumulator_bytes, persistent_bytes
from kerasmem.memory.oom import Room, fewest_micro_batches
from kerasmem.memory.oom.cause import figures_of
from kerasmem.memory.plan import MemoryPlan
from kerasmem.memory.plan.planner import NoPlanError, planned
from kerasmem.memory.plan.search import CHOICES, EIGHT_BITS, RECOMPUTE
from kerasmem.records import MemoryEstimate
from kerasmem.types import Model, Tensors


class MicroBatchPlan:
    """Number of samples that run through the model at a time.

    The number decreases after a failure.

    Attributes:
        most: Maximum number of samples at a time, or `None` for no limit.
    """

    def __init__(self) -> None:
        self.most: int | None = None

    def foresee(self, most: int) -> None:
        """Set an upper bound for `most` from an estimate."""
        self.most = most if self.most is None else min(most, self.most)

    def fail(self, size: int, parts: int) -> None:
        """Record a failure, and split a batch of `size` samples into `parts`."""
        self.most = -(-size // parts)

    def parts(self, size: int) -> int:
        """Return the number of parts for a batch of `size` samples."""
        return 1 if self.most is None else -(-size // self.most)


# Fraction of the limit: XLA allocates the memory of a step in one block, but free
# memory may be fragmented.
_SAFE = 0.8


def example(model: Model, batch: Tensors, input_shape: Any | None) -> dict[str, Any]:
    """Return the argument of `estimate_memory` that describes a batch."""
    if not has_own_step(model):
        return {"input_shape": input_shape}
    return {"data": batch if isinstance(batch, tuple) else (batch,)}


def micro_batches(
    model: Model,
    batch_size: int,
    limit_bytes: int,
    *,
    verify: bool,
    **described: Any,
) -> int | None:
    """Return the estimated number of parts for a batch, `None` if no number fits.

    `verify` is `True` if failed steps cannot be rolled back. The upper bound of the
    estimate is then used, and steps near the limit are tested in a child.
    """
    estimate = functools.cache(
        functools.partial(_estimate, model, is_cautious=verify, **described)
    )
    room = Room(
        limit_bytes=limit_bytes,
        other_bytes=_other_bytes(model),
        accumulator_bytes=accumulator_bytes(model),
    )
    fitting = fewest_micro_batches(estimate, room, batch_size)
    parts = None if fitting is None else fitting.micro_batches
    is_easy = parts == 1 and fitting and fitting.peak_bytes < _SAFE * limit_bytes
    if not verify or is_easy:
        return parts
    sums = 0 if parts == 1 else room.accumulator_bytes
    remaining = round(_SAFE * limit_bytes) - room.other_bytes - sums
    largest = -(-batch_size // (parts or batch_size))
    try:
        batch = find_batch_size(model, remaining, largest=largest, **described)
    except ConfigError:  # For example if this process has allocated the whole GPU.
        return min(batch_size, 2 * parts) if parts else batch_size
    return -(-batch_size // batch)


class PlannedStep:
    """Trains a model by a memory plan until the end of `fit`.

    Attributes:
        function: The step function of the planned model, `None` without a plan.
    """

    def __init__(self, model: Model, training: Steps) -> None:
        self.function: Step | None = None
        self._model, self._training = model, training
        self._undo: Callable[[], None] | None = None

    def choose(
        self, batch_size: int, limit_bytes: int, input_shape: Any, *, splits: bool
    ) -> tuple[MemoryPlan | None, int | None]:
        """Apply the fastest plan within a limit.

        `splits` is `True` if the plan may use micro-batches.

        Returns:
            The plan or `None`, and the lowest limit if no plan fits.

        Raises:
            ModelError: If the calls of the model cannot be recorded.
        """
        model = self._model
        if has_own_step(model) or policy_of(model) is not None:
            return None, None
        request = checked_request(
            model, batch_size, device=device_kind(), input_shape=input_shape
        )
        stored_bytes, other_bytes = persistent_bytes(request), _other_bytes(model)
        usable_bytes = round(USABLE * (limit_bytes - other_bytes - stored_bytes))
        choices = CHOICES if splits else (RECOMPUTE, EIGHT_BITS)
        try:
            plan = planned(request, stored_bytes + usable_bytes, choices)
        except NoPlanError as error:
            needed_bytes = round((error.lowest_bytes - stored_bytes) / USABLE)
            return None, other_bytes + stored_bytes + needed_bytes
        if plan.changes_activations:
            self._undo = plan.apply_in_place(model)
        is_changed = plan.changes_activations or plan.micro_batches > 1
        return plan if is_changed else None, None

    def trace(self) -> None:
        """Build the step function again if a plan is applied."""
        if self._undo is not None:
            self.function = self._training.function_of(self._training.step)

    def undo(self) -> None:
        """Restore the calls of the model."""
        if self._undo is not None:
            self._undo()
        self.function = self._undo = None


def _estimate(
    model: Model, size: int, *, is_cautious: bool, **described: Any
) -> MemoryEstimate:
    estimate = estimate_memory(model, size, device=device_kind(), **described)
    return (
        estimate if is_cautious else replace(estimate, high_bytes=estimate.peak_bytes)
    )


def _other_bytes(model: Model) -> int:
    in_use = figures_of().current_bytes
    if in_use is None:
        return 0
    return max(in_use - held_bytes(model), 0)


_PASSES = 2  # On a GPU, the first step autotunes kernels and may need more memory.


class SafeShapes:
    """Records the shapes of batches whose steps succeeded.

    A batch fits if no axis is longer than in a recorded shape.
    """

    def __init__(self) -> None:
        self._passed: Counter[tuple[int, ...]] = Counter()
        self._safe: list[tuple[int, ...]] = []

    def covers(self, parts: int, shape: tuple[int, ...]) -> bool:
        """Return whether a batch of `shape`, split into `parts`, is known to fit."""
        key = parts, *shape
        return any(_is_within(key, safe) for safe in self._safe)

    def note(self, parts: int, shape: tuple[int, ...]) -> None:
        """Record a successful step."""
        key = parts, *shape
        self._passed[key] += 1
        if self._passed[key] >= _PASSES:
            self._safe = [safe for safe in self._safe if not _is_within(safe, key)]
            self._safe.append(key)


def _is_within(key: tuple[int, ...], safe: tuple[int, ...]) -> bool:
    return (
        len(key) == len(safe)
        and key[0] == safe[0]
        and all(length <= most for length, most in zip(key, safe, strict=True))
    )


_MOST_OF_THE_TIME = 0.005


class Rollback:
    """Keeps one copy of the training state on the host.

    The copy is renewed before a step that must not be lost and at the start of an
    epoch. In between, it is renewed while copies take less than 0.5 % of the time.

    Attributes:
        age: Number of steps since the copy.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._copy: Any = None
        self._due_at = 0.0
        self.age = 0

    def keep(self, state: Any, *, now: bool) -> None:
        """Renew the copy if it is due.

        With `now`, the copy is renewed in any case.
        """
        start = time.perf_counter()
        if not now and start < self._due_at:
            self.age += 1
            return
        # The old copy is kept until now, because pending device errors surface here.
        self._copy = self._steps.snapshot(state)
        end = time.perf_counter()
        self._due_at = end + (end - start) / _MOST_OF_THE_TIME
        self.age = 0

    def expire(self) -> None:
        """Mark the copy as due before the next step."""
        self._due_at = 0.0

    def back(self, state: Any) -> Any:
        """Restore the copy. Returns the new state."""
        self.age = 0
        return self._steps.restore(self._copy, state)

    def drop(self) -> None:
        """Free the copy."""
        self._copy = None
