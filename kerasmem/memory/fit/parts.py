"""A batch in several parts, as one update or one step of an evaluation."""

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
    """Runs a batch part by part through the model's own step, while it is open.

    Args:
        model: the compiled model, built.
        steps: how it is trained or evaluated.
        factors: multiplies its losses.

    Attributes:
        is_open: whether batches go in parts.
    """

    def __init__(self, model: Model, steps: Steps, factors: LossFactors) -> None:
        self.is_open = False
        self._model = model
        self._steps = steps
        self._factors = factors
        self._is_masked = False
        self._count = steps.counting(self._valid) if losses.is_counted(model) else None

    @property
    @abstractmethod
    def functions(self) -> tuple[Step, ...]:
        """The functions that it calls."""

    def open(self, state: Any) -> Any:
        """Have batches go in parts; return the state to go on with."""
        self._factors.install()
        self.is_open = True
        return state

    def close(self, state: Any) -> Any:
        """Have batches go as a whole; return the state to go on with."""
        self.release()
        return state

    def release(self) -> None:
        """Have batches go as a whole when there is no state any more."""
        self.is_open = False

    @abstractmethod
    def run(self, state: Any, batch: Tensors, count: int) -> tuple[Any, Any]:
        """Return logs and state after one batch.

        Args:
            state: the state of before.
            batch: the batch.
            count: the number of parts, from 1 to that of the samples.
        """

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
    """Runs a batch part by part, and updates once, with the gradient of all of it.

    Each part goes through the model's own `train_step`, in which the optimizer adds
    its gradient to a sum; with the last part it updates. So clipping, averages of the
    weights, schedules and `iterations` see one update.

    Args:
        model: the compiled model, built.
        training: how it is trained.
        factors: multiplies its losses.
    """

    def __init__(self, model: Model, training: Steps, factors: LossFactors) -> None:
        super().__init__(model, training, factors)
        self._training = training
        self._sums: dict[int, GradientSum] = {}
        self._functions: dict[bool, Step] = {}
        self._reached = 0
        self._undo = ExitStack()
        # Of one thread: under a `tf.distribute` strategy each replica has one.
        self._now = threading.local()

    @property
    def functions(self) -> tuple[Step, ...]:
        """The functions that it calls."""
        return tuple(self._functions.values())

    def open(self, state: Any) -> Any:
        """Make the sums of gradients, all zero; return the state to go on with."""
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
        """Give the memory of the sums back; return the state to go on with."""
        before = self._model.optimizer.variables
        self.release()
        return self._training.adopt(state, before)

    def release(self) -> None:
        """Give the memory of the sums back when there is no state any more."""
        self._undo.close()

    def run(self, state: Any, batch: Tensors, count: int) -> tuple[Any, Any]:
        """Return logs and state after one update."""
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
            "A batch can go in parts only if the step updates once, through "
            "`model.optimizer`. Expected: one such update in `train_step`. Received: "
            f"{updates}. Next: keras.Model.fit with smaller batches, or on_oom='raise'."
        )


class EvaluationParts(Parts):
    """Runs a batch part by part through the model's own `test_step`.

    Keras's metrics add up samples, and the loss is one of them: it is a mean over the
    samples of the losses of all parts, each times what makes it count as in the whole.

    Args:
        model: the compiled model, built.
        evaluation: how it is evaluated.
        factors: multiplies its losses.
    """

    def __init__(self, model: Model, evaluation: Steps, factors: LossFactors) -> None:
        super().__init__(model, evaluation, factors)
        original = evaluation.step

        def step(*arguments: Any) -> Any:
            *state, (batch, weights) = arguments
            with factors.using(*weights):
                return original(*state, batch)

        self._function = evaluation.function_of(step)

    @property
    def functions(self) -> tuple[Step, ...]:
        """The function that it calls."""
        return (self._function,)

    def run(self, state: Any, batch: Tensors, count: int) -> tuple[Any, Any]:
        """Return logs and state after one batch."""
        logs = None
        for part in self._weighed(state, batch, count):
            logs, state = self._steps.run(self._function, state, part)
        return logs, state
