"""How a framework's `fit` calls its training step, and what a step changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakMethod

import keras
import numpy as np

Step = Callable[..., Any]
"""A model's `train_step` or `test_step`, or what stands in for it."""
Count = Callable[[Sequence[tuple[Any, Any]], Any], Any]
"""Returns a vector for a batch, where variables have the values paired with them."""


class StepState(Protocol):
    """A variable that a compiled training step may read and assign.

    On JAX a step is a pure function: only what rides among the optimizer's
    variables survives it. On the other backends any variable will do. The state
    never reaches a checkpoint.
    """

    variable: Any
    """The `keras.Variable` to read and assign inside the step."""

    def read(self) -> np.ndarray:
        """Return the current value; call it between epochs only."""
        ...

    def write(self, value: np.ndarray) -> None:
        """Set the value; call it between epochs only."""
        ...

    def release(self) -> None:
        """Take the variable out of the optimizer again; a second call is a no-op."""
        ...


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


class VariableState:
    """A `StepState` around a variable that nothing else knows of.

    Args:
        variable: the `keras.Variable`.
        to_numpy: turns the framework's own variable in it into an array. Keras does
            so with a deprecation warning of NumPy, on TensorFlow and torch.
    """

    def __init__(self, variable: Any, to_numpy: Callable[[Any], np.ndarray]) -> None:
        self.variable = variable
        self._to_numpy = to_numpy

    def read(self) -> np.ndarray:
        """Return a copy of the current value."""
        return self._to_numpy(self.variable.value).copy()

    def write(self, value: np.ndarray) -> None:
        """Set the value."""
        self.variable.assign(value)

    def release(self) -> None:
        """Do nothing: there is nothing to take the variable out of."""


def hidden_variable(value: np.ndarray, name: str) -> Any:
    """Return a `keras.Variable` with `value` that no layer or optimizer tracks."""
    return keras.Variable(
        value,
        dtype=str(value.dtype),
        trainable=False,
        aggregation="only_first_replica",
        name=name,
    )


Keep = Callable[[], Callable[[], None]]
"""Returns what puts everything back to what it is now."""

_RIDERS: WeakKeyDictionary[Any, list[WeakMethod[Keep]]] = WeakKeyDictionary()


def register_state(optimizer: Any, keep: Keep) -> Callable[[], None]:
    """Have `keep` called whenever a training is copied; return the undo.

    Not on JAX: what rides there is among the optimizer's variables.

    Args:
        optimizer: that of the training.
        keep: a method, called between steps as long as its object lives.
    """
    rider = WeakMethod(keep)
    _RIDERS.setdefault(optimizer, []).append(rider)
    return partial(_get_off, optimizer, rider)


def copied_state(optimizer: Any) -> list[Callable[[], None]]:
    """Return what puts back all that rides with an optimizer."""
    methods = [rider() for rider in _RIDERS.get(optimizer, ())]
    return [keep() for keep in methods if keep is not None]


def _get_off(optimizer: Any, rider: WeakMethod[Keep]) -> None:
    riders = _RIDERS.get(optimizer, [])
    riders[:] = [other for other in riders if other is not rider]


def keras_function_of(model: Any, kind: str, step: Step) -> Step:
    """Return what Keras makes of a step: compiled, distributed, or as it is.

    The model is left as it was.

    Args:
        model: a compiled model.
        kind: "train" or "test".
        step: takes and returns what the model's own step of this kind does.
    """
    method, function = f"{kind}_step", f"{kind}_function"
    kept, own = getattr(model, function), vars(model).get(method)
    setattr(model, function, None)
    # Past Keras's and torch's __setattr__, which track what is set.
    object.__setattr__(model, method, step)
    try:
        getattr(type(model), f"make_{kind}_function")(model)
        return getattr(model, function)
    finally:
        if own is None:
            object.__delattr__(model, method)
        else:
            object.__setattr__(model, method, own)
        setattr(model, function, kept)


def count_traces(model: Any, counter: str) -> int | None:
    """Return how many traces the training step has, None before the first step.

    Args:
        model: a compiled model.
        counter: name of the method by which the framework's compiled functions tell
            their traces.
    """
    function = getattr(model, "train_function", None)
    counts = [getattr(f, counter)() for f in compiled_functions(function, counter)]
    # The step is compiled in several functions, one within the other.
    return max(counts, default=None)


def compiled_functions(function: Any, method: str) -> list[Callable[..., Any]]:
    """Return the compiled functions that a training step calls.

    Args:
        function: `model.train_function`.
        method: name of a method that only the framework's compiled functions have.
    """
    return _compiled(function, method, set())


def _compiled(function: Any, counter: str, seen: set[int]) -> list[Callable[..., Any]]:
    # Private: `model.train_function` is a plain function, and the compiled ones are in
    # its closure. Keras has no public way to them.
    if hasattr(function, counter):
        return [function]
    inside = [c.cell_contents for c in getattr(function, "__closure__", None) or ()]
    inside += getattr(function, "versions", ())  # of a monitor's own step
    found: list[Callable[..., Any]] = []
    for each in inside:
        if callable(each) and id(each) not in seen:
            seen.add(id(each))
            found += _compiled(each, counter, seen)
    return found
