"""One update from several parts of a batch."""

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np

from kerasmem import backends
from kerasmem.backends.training import GradientSum, Part, Step, Training
from kerasmem.errors import ModelError
from kerasmem.memory.fit.losses import LossFactors
from kerasmem.memory.fit.weighed_parts import WeighedParts


class MicroBatches:
    """Runs a batch part by part, and updates once, with the gradient of all of it.

    Each part goes through the model's own `train_step`, in which the optimizer adds
    its gradient to a sum; with the last part it updates. So clipping, averages of the
    weights, schedules and `iterations` see one update.

    Args:
        model: the compiled model, built.
        training: how it is trained.
        factors: multiplies its losses.
    """

    def __init__(self, model: Any, training: Training, factors: LossFactors) -> None:
        self._model = model
        self._training = training
        self._factors = factors
        self._weighed = WeighedParts(model, training)
        self._sums: dict[int, GradientSum] = {}
        self._functions: dict[bool, Step] = {}
        self._reached = 0
        self._undo = ExitStack()
        # Of one thread: under a `tf.distribute` strategy each replica has one.
        self._now = threading.local()

    @property
    def is_open(self) -> bool:
        """Whether the sums of gradients take memory."""
        return bool(self._functions)

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
            self._factors.install()
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

    def run(self, state: Any, batch: Any, count: int) -> tuple[Any, Any]:
        """Return logs and state after one update.

        Args:
            state: the state of before.
            batch: the batch.
            count: the number of parts, from 1 to that of the samples.
        """
        *parts, last = self._weighed.of(state, batch, count)
        for part in parts:
            _, state = self._training.run(self._functions[False], state, part)
        self._notice_reached()
        return self._training.run(self._functions[True], state, last)

    def _sum_for(self, variable: Any, undo: ExitStack) -> GradientSum:
        state = backends.current().step_state(
            self._model.optimizer,
            np.zeros(variable.shape, "float32"),
            "kerasmem_gradient_sum",
            variable,
        )
        undo.callback(state.release)
        return GradientSum(state)

    def _forget(self) -> None:
        self._sums.clear()
        self._functions.clear()
        self._reached = 0

    def _notice_reached(self) -> None:
        """Have the last step traced anew if it knows less gradients than there are."""
        reached = sum(each.is_reached for each in self._sums.values())
        if reached > self._reached:
            self._reached = reached
            self._functions[True] = self._function(is_last=True)

    def _function(self, *, is_last: bool) -> Step:
        original = self._training.step

        def step(*arguments: Any) -> Any:
            *state, (batch, (share, factors)) = arguments
            self._now.part, self._now.updates = Part(share, is_last), 0
            try:
                with self._factors.given(factors):
                    result = original(*state, batch)
            finally:
                self._now.part = None
            _check_updates(self._now.updates)
            return result

        return self._training.function_of(step)

    def _part(self) -> Part | None:
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
