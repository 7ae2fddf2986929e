"""JAX training steps as pure functions of the state."""

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
    """Arrays and shardings of a state, and the optimizer variables at that time."""

    arrays: tuple[list[np.ndarray], ...]
    shardings: tuple[list[Any], ...]
    optimizer_variables: list[Any]


class JaxSteps(Steps):
    """Steps of a model as pure functions of its state."""

    def __init__(self, model: Model, kind: str) -> None:
        super().__init__(model, kind)
        slots = (_OPTIMIZER,) if kind == "train" else ()
        self._parts = (*_LAYERS, *slots, _METRICS)

    def unpack(self, arguments: Sequence[Any]) -> tuple[Any, Iterator[Any]]:
        """Return state and batches from the arguments of Keras's function."""
        state, batches = arguments
        return state, batches

    def run(self, function: Step, state: Any, batch: Tensors) -> tuple[Any, Any]:
        """Run `function` on one batch and return logs and state."""
        return function(state, iter([batch]))

    def pack(self, logs: Logs, state: Any) -> Any:
        """Return the result of Keras's function."""
        return logs, state

    def wait(self, logs: Logs, state: Any) -> None:
        """Wait for the device."""
        jax.block_until_ready((logs, state))

    def snapshot(self, state: Any) -> HostState:
        """Copy the state to the host."""
        return HostState(
            tuple([np.array(array) for array in part] for part in state),
            tuple([array.sharding for array in part] for part in state),
            self._model.optimizer.variables,
        )

    def restore(self, snapshot: HostState, state: Any) -> Any:
        """Return the state of a snapshot on the device."""
        pairs = zip(snapshot.arrays, snapshot.shardings, strict=True)
        arrays_on_device = tuple(
            [jax.device_put(a, s) for a, s in zip(arrays, shardings, strict=True)]
            for arrays, shardings in pairs
        )
        if self._kind == "test":
            return arrays_on_device
        return self.adopt(arrays_on_device, snapshot.optimizer_variables)

    def is_intact(self, state: Any) -> bool:
        """Return whether the state is neither donated nor failed."""
        if any(array.is_deleted() for part in state for array in part):
            return False
        try:
            jax.block_until_ready(state)  # a failure may appear one step late
        except Exception:  # noqa: BLE001 - any failure makes the state invalid
            return False
        return True

    def give_up(self, state: Any) -> None:
        """Set the state of the model before an error ends the fit."""
        # Private: at the end of `fit`, Keras assigns these values to the variables. The
        # current ones may be donated to the failed step.
        self._model._jax_state = dict(zip(self._parts, state, strict=True))

    @contextmanager
    def values(self, state: Any) -> Iterator[None]:
        """Return a context in which the variables have the values of `state`."""
        # Private: during `fit`, Keras removes the variable values to avoid copies.
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
        """Compile and distribute a step as Keras does."""
        # Not with Keras's functions, which need variable values for the distribution.
        # In `fit`, variables have none.
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
        """Return a compiled function of state and batch that calls `count`."""
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
        """Make the optimizer accumulate gradients in micro-batch steps."""
        optimizer = self._model.optimizer
        own = [id(variable) for variable in optimizer.variables]
        states = [sums[id(variable)] for variable in self._model.trainable_variables]
        places = [own.index(id(state.variable)) for state in states]

        def update(
            original: Callable[..., Any], variables: Any, gradients: Any, trainable: Any
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

        # Not `apply`: a loss scaling optimizer would check each part for nonfinite
        # numbers. No issue known: Keras 3.15 has no hook for an update.
        return patch_method(optimizer, "stateless_apply", update)

    def adopt(self, state: Any, variables: Sequence[Any]) -> Any:
        """Return the state with the current variables of the optimizer."""
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
    # Private: as in Keras's `fit`, to avoid a second copy.
    value, variable._value = variable._value, None
    return value


class JaxStepping(StepBackend):
    """JAX training steps, compiled as pure functions of the state."""

    steps = JaxSteps

    def traces(self, model: Model) -> int | None:
        """Return the number of traces of the training step, or None if unknown.

        Unknown before the first step. Also unknown if JAX's cache of 8,192 compiled
        functions was full.
        """
        # Private: the size of the cache of the compiled step. There is no public count.
        return count_traces(model, "_cache_size") or None
