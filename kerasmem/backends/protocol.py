"""What kerasmem needs of a framework beyond Keras's public API."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from kerasmem.backends.profile import Followed, MemoryProfiler
from kerasmem.records import DeviceReading


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


class Backend(Protocol):
    """One adapter per framework, reached through `kerasmem.backends.current()`."""

    name: str
    """The name Keras gives the backend, such as `"jax"`."""

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return one reading per device, empty where the framework gives none."""
        ...

    def reset_device_peak(self) -> bool:
        """Start a new peak on every device; False where the framework cannot."""
        ...

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        ...

    def input_bytes(self) -> int | None:
        """Return the bytes that the host holds ready for a device that trains.

        None where the framework does not count them, or no device but the CPU trains.
        """
        ...

    def cuda_ordinals(self) -> dict[str, int]:
        """Return CUDA's number, from 0 among the visible, of each device's card."""
        ...

    def processes(self, model: Any) -> tuple[int, int]:
        """Return the index of this process and the number that train together."""
        ...

    def traces(self, model: Any) -> int | None:
        """Return how many times the training step of `model` was traced so far.

        None before the first step, and where the framework does not count.
        """
        ...

    def memory_profiler(self, followed: Followed) -> MemoryProfiler:
        """Return what records every allocation and free while a model trains."""
        ...

    def step_state(self, optimizer: Any, value: np.ndarray, name: str) -> StepState:
        """Return a state that starts as `value` and rides in compiled steps.

        On JAX call it before the step is traced; elsewhere also while it is.
        """
        ...

    def observe_gradients(
        self, optimizer: Any, observer: Callable[[Sequence[Any], Sequence[Any]], None]
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo.

        The gradients are those that reach the update: unscaled, unclipped,
        accumulated, summed over replicas. The call happens inside the compiled
        step, so the observer sees tensors and may assign a `StepState`.
        """
        ...

    def observe_loss_scaling(
        self, optimizer: Any, observer: Callable[[Any], None]
    ) -> Callable[[], None]:
        """Call `observer(finite)` in every step of a loss scaling optimizer.

        `finite` is a boolean scalar tensor; where it is False the optimizer skips
        the update. Without loss scaling nothing is called. Returns the undo.
        """
        ...

    def global_norm(self, gradients: Sequence[Any]) -> Any:
        """Return the L2 norm of all gradients together, a float32 scalar tensor."""
        ...

    def summed(self, gradient: Any) -> Any:
        """Return the nonzero part of a gradient as one tensor.

        A sparse gradient comes back as its rows, those of one index summed, padded
        with rows of zeros; every other gradient comes back as it is.
        """
        ...

    def inference(self) -> AbstractContextManager[Any]:
        """Return a scope in which no backward pass is recorded."""
        ...
