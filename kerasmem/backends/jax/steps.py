"""JAX: a step is a pure function of the state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from kerasmem.backends.patching import patch_method
from kerasmem.backends.steps import (
    BatchPart,
    Count,
    GradientSum,
    Step,
    StepBackend,
    Steps,
    count_traces,
)
from kerasmem.types import Logs, Model, Tensors, Variable

_OPTIMIZER = "optimizer_variables"
_LAYERS = ("trainable_variables", "non_trainable_variables")
_METRICS = "metrics_variables"


@dataclass(frozen=True)
class HostState:
    """The arrays of a state, where each lay, and the optimizer's variables by then."""

    arrays: tuple[list[np.ndarray], ...]
    shardings: tuple[list[Any], ...]
    optimizer_variables: list[Any]


class JaxSteps(Steps):
    """Steps of a model that are pure functions of its state.

    Args:
        model: the compiled model.
        kind: `"train"` or `"test"`, as Keras names its functions.
    """

    def __init__(self, model: Model, kind: str) -> None:
        super().__init__(model, kind)
        slots = (_OPTIMIZER,) if kind == "train" else ()
        self._parts = (*_LAYERS, *slots, _METRICS)

    def unpack(self, arguments: Sequence[Any]) -> tuple[Any, Iterator[Any]]:
        """Return state and batches of what Keras gave its function."""
        state, batches = arguments
        return state, batches

    def run(self, function: Step, state: Any, batch: Tensors) -> tuple[Any, Any]:
        """Return logs and state after `function` had one batch."""
        return function(state, iter([batch]))

    def pack(self, logs: Logs, state: Any) -> Any:
        """Return what Keras expects of its function."""
        return logs, state

    def wait(self, logs: Logs, state: Any) -> None:
        """Wait until the device has done what it was told."""
        jax.block_until_ready((logs, state))

    def snapshot(self, state: Any) -> HostState:
        """Return a copy of the state."""
        return HostState(
            tuple([np.array(array) for array in part] for part in state),
            tuple([array.sharding for array in part] for part in state),
            self._model.optimizer.variables,
        )

    def restore(self, snapshot: HostState, state: Any) -> Any:
        """Return the state that `snapshot` is a copy of."""
        pairs = zip(snapshot.arrays, snapshot.shardings, strict=True)
        arrays_on_device = tuple(
            [jax.device_put(a, s) for a, s in zip(arrays, shardings, strict=True)]
            for arrays, shardings in pairs
        )
        if self._kind == "test":
            return arrays_on_device
        return self.adopt(arrays_on_device, snapshot.optimizer_variables)

    def is_intact(self, state: Any) -> bool:
        """Return whether the state was neither given away nor fails itself."""
        if any(array.is_deleted() for part in state for array in part):
            return False
        try:
            jax.block_until_ready(state)  # it may be what failed, a step late
        except Exception:  # noqa: BLE001 - whatever it is, the state is none
            return False
        return True

    def give_up(self, state: Any) -> None:
        """Leave the model with `state`, because an error is about to end the fit."""
        # Private: from here Keras gives the variables their values back when `fit`
        # ends, and what it has may be what the failed step was given.
        self._model._jax_state = dict(zip(self._parts, state, strict=True))

    @contextmanager
    def values(self, state: Any) -> Iterator[None]:
        """Return a scope in which the variables have the values of `state`."""
        # Private: in `fit` Keras takes the variables their values, so that there are
        # not two of each.
        variables = [v for part in self._parts for v in self._variables(part)]
        before = [variable._value for variable in variables]
        arrays = [array for part in state or () for array in part]
        try:
            for variable, array in zip(variables, arrays, strict=False):
                variable._value = array
            yield
        finally:
            for variable, value in zip(variables, before, strict=True):
                variable._value = value

    def function_of(self, step: Step) -> Step:
        """Return what Keras makes of a step: compiled and distributed."""
        # Not by Keras's own functions: they ask the variables how they are distributed,
        # and in `fit` these have no values.
        model = self._model
        is_compiled = model.jit_compile and not model.run_eagerly
        functions: list[Step] = [] if is_compiled else [step]

        def function(state: Any, batches: Iterator[Any]) -> Any:
            if not functions:
                shardings = jax.tree.map(lambda array: array.sharding, state)
                functions.append(
                    jax.jit(step, donate_argnums=0, out_shardings=(None, shardings))
                )
            return functions[0](state, next(batches))

        return function

    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a function of state and batch that calls `count`, compiled."""
        places = [place for place, part in enumerate(self._parts) if part != _OPTIMIZER]

        def counted(state: Sequence[Any], batch: Tensors) -> Any:
            pairs = zip(places, state, strict=True)
            variables = [(self._variables(self._parts[n]), part) for n, part in pairs]
            mapping = [pair for each in variables for pair in zip(*each, strict=True)]
            return count(mapping, batch)

        function = counted if self._model.run_eagerly else jax.jit(counted)
        return lambda state, batch: function([state[n] for n in places], batch)

    def replace_update(
        self, sums: Mapping[int, GradientSum], part: Callable[[], BatchPart | None]
    ) -> Callable[[], None]:
        """Have the optimizer add up gradients in steps that run a part of a batch."""
        optimizer = self._model.optimizer
        own = [id(variable) for variable in optimizer.variables]
        states = [sums[id(variable)] for variable in self._model.trainable_variables]
        places = [own.index(id(state.variable)) for state in states]

        def update(
            original: Any, variables: Any, gradients: Any, trainable: Any
        ) -> tuple[list[Any], list[Any]]:
            now = part()
            if now is None:
                return original(variables, gradients, trainable)
            totals = [
                variables[place] + now.share * gradient.astype(variables[place].dtype)
                for place, gradient in zip(places, gradients, strict=True)
            ]
            if now.is_last:
                pairs = zip(totals, gradients, strict=True)
                whole = [total.astype(gradient.dtype) for total, gradient in pairs]
                trainable, variables = original(variables, whole, trainable)
                totals = [jax.numpy.zeros_like(total) for total in totals]
            variables = list(variables)
            for place, total in zip(places, totals, strict=True):
                variables[place] = total
            return trainable, variables

        # Not `apply`: an optimizer that scales the loss would check each part for
        # nonfinite numbers. No issue known: Keras 3.15 has no hook for an update.
        return patch_method(optimizer, "stateless_apply", update)

    def adopt(self, state: Any, variables: Sequence[Any]) -> Any:
        """Return the state for the variables that the optimizer has now."""
        place = self._parts.index(_OPTIMIZER)
        values = dict(zip(map(id, variables), state[place], strict=True))
        optimizer_state = [
            values[id(variable)] if id(variable) in values else _taken(variable)
            for variable in self._model.optimizer.variables
        ]
        return (*state[:place], optimizer_state, *state[place + 1 :])

    def _variables(self, part: str) -> Sequence[Any]:
        if part == _OPTIMIZER:
            return self._model.optimizer.variables
        return getattr(self._model, part)


def _taken(variable: Variable) -> Any:
    # Private: as Keras does it in `fit`, so that there are not two of each.
    value, variable._value = variable._value, None
    return value


class JaxStepping(StepBackend):
    """JAX compiles a step as a pure function of the state."""

    steps = JaxSteps

    def compiles_with_xla(self, model: Model) -> bool:
        """Return True: a step that runs eagerly calls compiled operations."""
        return True

    def traces(self, model: Model) -> int | None:
        """Return how many traces the training step has, None where JAX does not tell.

        It does not before the first step, nor for a step that found the 8,192 places
        of the process full, in which JAX keeps what it has compiled for fast calls.
        """
        # Private, for want of a public count: the entries of the compiled step's cache.
        return count_traces(model, "_cache_size") or None
