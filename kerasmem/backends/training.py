"""How a framework's `fit` calls its training step, and what a step changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kerasmem.backends.state import StepState

Step = Callable[..., Any]
"""A model's `train_step` or `test_step`, or what stands in for it."""
Count = Callable[[Sequence[tuple[Any, Any]], Any], Any]
"""Returns a vector for a batch, where variables have the values paired with them."""


class Part(NamedTuple):
    """A part of a batch.

    Args:
        share: what each gradient is multiplied with.
        is_last: whether the sum, with this part in it, is then what the variables are
            updated with, and starts from zero again.
    """

    share: Any
    is_last: bool


@dataclass(eq=False)
class GradientSum:
    """The sum of one variable's gradients over the parts of a batch.

    Args:
        state: the float32 state that it rides in.
        is_reached: whether any part had a gradient for the variable. Where a step is
            compiled: any that was traced.
    """

    state: StepState
    is_reached: bool = False

    @property
    def variable(self) -> Any:
        """The `keras.Variable` to read and assign inside the step."""
        return self.state.variable

    @property
    def value(self) -> Any:
        """The sum so far."""
        return self.state.variable.value


class Steps(Protocol):
    """One model that a `fit` of this framework trains, or evaluates meanwhile.

    `state` is what a step is given and returns where steps are pure functions, as on
    JAX; elsewhere it is None, and the variables hold the state.
    """

    @property
    def step(self) -> Step:
        """The model's own step."""
        ...

    @property
    def survives_failure(self) -> bool:
        """Whether variables can be written when a step has run out of memory."""
        ...

    def unpack(self, arguments: Sequence[Any]) -> tuple[Any, Iterator[Any]]:
        """Return state and batches of what Keras gave its function."""
        ...

    def run(self, function: Step, state: Any, batch: Any) -> tuple[Any, Any]:
        """Return logs and state after `function` had one batch."""
        ...

    def pack(self, logs: Any, state: Any) -> Any:
        """Return what Keras expects of its function."""
        ...

    def wait(self, logs: Any, state: Any) -> None:
        """Wait until the device has done what it was told."""
        ...

    def snapshot(self, state: Any) -> Any:
        """Return a copy, on the host, of all that steps change."""
        ...

    def restore(self, snapshot: Any, state: Any) -> Any:
        """Put back what `snapshot` has; return the state to go on with."""
        ...

    def is_intact(self, state: Any) -> bool:
        """Return whether the step that has just failed is sure to have changed none."""
        ...

    def give_up(self, state: Any) -> None:
        """Leave the model with `state`, because an error is about to end the fit."""
        ...

    def values(self, state: Any) -> AbstractContextManager[Any]:
        """Return a scope in which the variables have the values of `state`."""
        ...

    def function_of(self, step: Step) -> Step:
        """Return what Keras makes of a step: compiled and distributed.

        Args:
            step: takes and returns what the model's own does.
        """
        ...

    def split(self, batch: Any, parts: int) -> list[Any]:
        """Return a batch in so many parts, of nearly one size.

        Raises:
            DataError: if the arrays in it are of different lengths.
        """
        ...

    def size(self, batch: Any) -> int:
        """Return the number of samples, the least that a replica has.

        It is 1 if the batch cannot be split, because its arrays are of different
        lengths or one of them is empty.
        """
        ...

    def shape(self, batch: Any) -> tuple[int, ...]:
        """Return the lengths of all axes of all arrays in a batch."""
        ...

    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a function of state and batch that calls `count`, compiled.

        It gives `weigh` what a part's losses are means of, on each replica.
        """
        ...

    def weigh(
        self, parts: Sequence[Any], valid: Sequence[Any] | None
    ) -> list[tuple[Any, Any]]:
        """Return each part with what it counts, see `splitting.weights`.

        Args:
            parts: what `split` returned.
            valid: what `counting` gave for each; None for means over the samples.
        """
        ...

    def free(self) -> None:
        """Give back to the device what nothing holds any more."""
        ...


class Training(Steps, Protocol):
    """One model that a `fit` of this framework trains."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope in which variables of this training are made."""
        ...

    def replace_update(
        self, sums: Mapping[int, GradientSum], part: Callable[[], Part | None]
    ) -> Callable[[], None]:
        """Have the optimizer add up gradients in steps that run a part of a batch.

        Args:
            sums: the sums of gradients, by the `id` of the variable.
            part: asked while a step is traced or runs; None for the optimizer's own
                update.

        Returns:
            the undo.
        """
        ...

    def adopt(self, state: Any, variables: Sequence[Any]) -> Any:
        """Return the state for the variables that the optimizer has now.

        Args:
            state: the state of before.
            variables: the variables that the optimizer had before; those that came
                since start from zero.
        """
        ...


def build_for(model: Any, batch: Any) -> None:
    """Build what the first step on `batch` would build: layers, slots, metrics.

    Else they would come to be in the midst of a step that may fail. A model that can
    only be built by a real call is left to the step.
    """
    with suppress(RuntimeError, ValueError, TypeError, AttributeError):
        # Private: what Keras itself calls first in `fit`, on JAX and torch always.
        model._symbolic_build(data_batch=batch)


def changed_by_training(model: Any) -> list[Any]:
    """Return every variable that a training step may change, each once."""
    optimizer = model.optimizer
    slots = optimizer.variables if optimizer is not None else ()
    return _each_once([*model.variables, *slots, *model.metrics_variables])


def changed_by_evaluation(model: Any) -> list[Any]:
    """Return every variable that a step of `evaluate` may change, each once."""
    return _each_once([*model.metrics_variables, *model.non_trainable_variables])


def _each_once(variables: Sequence[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())
