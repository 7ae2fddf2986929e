"""XLA's memory plan of the compiled JAX training step."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from kerasmem.backends.profile import Followed, Profile, ProfilerUnavailableError
from kerasmem.backends.xla.hlo import Instruction, read_buffers
from kerasmem.backends.xla.plan import step_plan
from kerasmem.types import Model


class JaxProfiler:
    """A `MemoryProfiler` that returns XLA's plan of one step.

    JAX has no allocator events. The profiler stores the shapes of the step's arguments
    and compiles the step for them at the end, which uses JAX's cache.
    """

    names = "xla"

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._original: Any = None
        self._shapes: Any = None

    def start(self) -> None:
        """Start, or raise `ProfilerUnavailableError` if the step is not compiled."""
        original = self._followed.model.train_function
        step = _compiled_step(original)
        if step is None:
            raise ProfilerUnavailableError(
                "JAX reports memory only for a compiled step, so there is no timeline. "
                "Compile the model with jit_compile=True (Keras's default) and without "
                "run_eagerly."
            )

        self._original = original
        # No issue known: Keras 3.15 passes no batch and no step state to callbacks.
        self._followed.model.train_function = self._step

    def stop(self) -> Profile:
        """Stop, restore the step and return its plan."""
        original, self._original = self._original, None
        if original is None:
            return Profile([])
        # Other code may have replaced the function in the meantime.
        if self._followed.model.train_function == self._step:
            self._followed.model.train_function = original
        if self._shapes is None:
            return Profile([])
        executable = _compiled_step(original).lower(*self._shapes).compile()
        module = executable.runtime_executable().hlo_modules()[0]
        analysis = executable.memory_analysis()
        plan = step_plan(
            module.as_serialized_hlo_module_proto(),
            read_buffers(analysis.serialized_buffer_assignment_proto),
            _device(executable),
            self._variables_by_argument(),
        )
        return Profile([plan.trace], plan.arguments, plan.arguments)

    def _step(self, state: Any, batches: Any) -> Any:
        if self._shapes is None:
            return self._original(state, self._noting(state, batches))
        return self._original(state, batches)

    def _noting(self, state: Any, batches: Any) -> Iterator[Any]:
        shapes = jax.tree.map(_shape, state)  # before the step donates the state
        for batch in batches:
            if self._shapes is None:
                self._shapes = (shapes, jax.tree.map(_shape, batch))
            yield batch

    def _variables_by_argument(self) -> Callable[[Instruction], int | None]:
        numbers = {id(v): n for n, v in enumerate(self._followed.variables)}
        groups = _state_of(self._followed.model)

        def variable_of(argument: Instruction) -> int | None:
            place = _STATE.fullmatch(argument.name)
            if place is None:
                return None
            return numbers.get(id(groups[int(place[1])][int(place[2])]))

        return variable_of


# Name of an argument of `train_step(state, data)`.
_STATE = re.compile(r"state\[(\d+)\]\[(\d+)\]")


def _state_of(model: Model) -> tuple[list[Any], ...]:
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )


def _compiled_step(train_function: Any) -> Any:
    # Private: only the closure of the train function contains the compiled step.
    inside = inspect.getclosurevars(train_function).nonlocals.get("step_function")
    return inside if isinstance(inside, jax.stages.Wrapped) else None


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    is_sharded = sharding is not None and len(sharding.device_set) > 1
    return jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=sharding if is_sharded else None,
        weak_type=getattr(leaf, "weak_type", False),
    )


def _device(compiled: Any) -> str:
    sharding = jax.tree.leaves(compiled.output_shardings)[0]
    first = min(sharding.device_set, key=lambda device: device.id)
    return f"{first.platform}:{first.id}"
