"""Two versions of a training step: one that measures, one for the steps between."""

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import keras

from kerasmem.backends.gradients import scales_loss
from kerasmem.backends.steps import keras_function_of

MEASURING_STEPS = 2
"""Behind a step that measures comes one that sees how far the update went."""


class LeanStep:
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
