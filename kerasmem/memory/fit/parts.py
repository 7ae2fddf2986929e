"""Runs a batch in several parts, as one update or one evaluation step."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.backends.steps import BatchPart, GradientSum, Step, Steps
from kerasmem.errors import ModelError
from kerasmem.memory.fit import losses
from kerasmem.memory.fit.losses import LossFactors
from kerasmem.types import Model, Tensors, Variable


class Parts(ABC):
    """Runs the parts of a batch through the step of the model.

    Attributes:
        is_open: Whether batches are split.
    """

    def __init__(self, model: Model, steps: Steps, factors: LossFactors) -> None:
        self.is_open = False
        self._model = model
        self._steps = steps
        self._factors = factors
        self._is_masked = False
        self._count = steps.counting(self._valid) if losses.is_counted(model) else None

    def open(self, state: Any) -> Any:
        """Start splitting batches. Returns the new state."""
        self._factors.install()
        self.is_open = True
        return state

    def close(self, state: Any) -> Any:
        """Stop splitting batches. Returns the new state."""
        self.release()
        return state

    def release(self) -> None:
        """Stop splitting batches without a state."""
        self.is_open = False

    @abstractmethod
    def run(self, state: Any, batch: Tensors, count: int) -> tuple[Any, Any]:
        """Run one batch. Returns its logs and the new state."""

    def _weighed(self, state: Any, batch: Tensors, count: int) -> list[tuple[Any, Any]]:
        parts = self._steps.split(batch, count)
        return self._steps.weigh(parts, self._counted(state, parts))

    def _counted(self, state: Any, parts: Sequence[Any]) -> list[Any] | None:
        if self._count is None:
            return None
        first = self._count(state, parts[0])
        if not self._is_masked and losses.are_means(self._model):
            self._count = None
            return None
        return [first, *(self._count(state, part) for part in parts[1:])]

    def _valid(self, values: Sequence[tuple[Any, Any]], batch: Tensors) -> Any:
        with keras.StatelessScope(state_mapping=list(values)):
            return losses.count_valid(self._model, batch, self._note_mask)

    def _note_mask(self) -> None:
        self._is_masked = True


class MicroBatches(Parts):
    """Runs a batch part by part and updates once with the gradient of the batch.

    Each part runs through the `train_step` of the model, in which the optimizer
    accumulates the gradient. The optimizer updates with the last part. Clipping, weight
    averages, schedules and `iterations` are therefore applied once.
    """

    def __init__(self, model: Model, training: Steps, factors: LossFactors) -> None:
        super().__init__(model, training, factors)
        self._training = training
        self._sums: dict[int, GradientSum] = {}
        self._functions: dict[bool, Step] = {}
        self._reached = 0
        self._undo = ExitStack()
        # Under a `tf.distribute` strategy, each replica runs in a separate thread.
        self._now = threading.local()

    def open(self, state: Any) -> Any:
        """Create the gradient accumulators. Returns the new state."""
        before = self._model.optimizer.variables
        with ExitStack() as undo:
            undo.callback(self._forget)
            with self._training.scope():
                for variable in self._model.trainable_variables:
                    self._sums[id(variable)] = self._sum_for(variable, undo)
            super().open(state)
            undo.callback(self._training.replace_update(self._sums, self._part))
            for is_last in (False, True):
                self._functions[is_last] = self._function(is_last=is_last)
            self._undo = undo.pop_all()
        return self._training.adopt(state, before)

    def close(self, state: Any) -> Any:
        """Free the gradient accumulators. Returns the new state."""
        before = self._model.optimizer.variables
        self.release()
        return self._training.adopt(state, before)

    def release(self) -> None:
        """Free the gradient accumulators without a state."""
        self._undo.close()

    def run(self, state: Any, batch: Tensors, count: int) -> tuple[Any, Any]:
        """Run one update. Returns its logs and the new state."""
        *parts, last = self._weighed(state, batch, count)
        for part in parts:
            _, state = self._training.run(self._functions[False], state, part)
        self._notice_reached()
        return self._training.run(self._functions[True], state, last)

    def _sum_for(self, variable: Variable, undo: ExitStack) -> GradientSum:
        state = backends.current().step_state(
            self._model.optimizer,
            np.zeros(variable.shape, "float32"),
            "kerasmem_gradient_sum",
            variable,
        )
        undo.callback(state.release)
        return GradientSum(state)

    def _forget(self) -> None:
        super().release()
        self._sums.clear()
        self._functions.clear()
        self._reached = 0

    def _notice_reached(self) -> None:
        count = sum(each.is_reached for each in self._sums.values())
        if count > self._reached:
            self._reached = count
            self._functions[True] = self._function(is_last=True)

    def _function(self, *, is_last: bool) -> Step:
        original = self._training.step

        def step(*arguments: Any) -> Any:
            *state, (batch, (share, factors)) = arguments
            self._now.part, self._now.updates = BatchPart(share, is_last), 0
            try:
                with self._factors.using(share, factors):
                    result = original(*state, batch)
            finally:
                self._now.part = None
            _check_updates(self._now.updates)
            return result

        return self._training.function_of(step)

    def _part(self) -> BatchPart | None:
        part = getattr(self._now, "part", None)
        if part is not None:
            self._now.updates += 1
        return part


def _check_updates(updates: int) -> None:
    if updates != 1:
        raise ModelError(
            "A batch can be split only if `train_step` updates once through "
            "`model.optimizer`. Expected: one such update in `train_step`. Received: "
            f"{updates}. Next: call keras.Model.fit with smaller batches, or pass "
            "on_oom='raise'."
        )


class EvaluationParts(Parts):
    """Runs a batch part by part through the `test_step` of the model.

    Keras metrics add up samples. The loss is a mean over samples, so the loss of each
    part is scaled to its share of the batch.
    """

    def __init__(self, model: Model, evaluation: Steps, factors: LossFactors) -> None:
        super().__init__(model, evaluation, factors)
        original = evaluation.step

        def step(*arguments: Any) -> Any:
            *state, (batch, weights) = arguments
            with factors.using(*weights):
                return original(*state, batch)

        self._function = evaluation.function_of(step)

    def run(self, state: Any, batch: Tensors, count: int) -> tuple[Any, Any]:
        """Run one batch. Returns its logs and the new state."""
        logs = None
        for part in self._weighed(state, batch, count):
            logs, state = self._steps.run(self._function, state, part)
        return logs, state
