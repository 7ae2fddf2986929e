"""What kerasmem needs of a framework beyond Keras's public API."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from kerasmem.backends.device import DeviceSettings
from kerasmem.backends.exhaustion import RefusalLog
from kerasmem.backends.gradients import Observer
from kerasmem.backends.lazy import LazyValues
from kerasmem.backends.options import StepOptions
from kerasmem.backends.profile import Followed, MemoryProfiler
from kerasmem.backends.recompute import Function, Store
from kerasmem.backends.steps import Steps, StepState, Training
from kerasmem.records import DeviceReading


class GradientMeter(Protocol):
    """Measures gradients inside of a training step, in as few passes as it takes.

    A sparse gradient is never made dense: its rows of one index are summed first.
    """

    def squared_norms(self, gradients: Sequence[Any]) -> Any:
        """Return the square of the L2 norm of each, a float32 vector."""
        ...

    def statistics(self, gradients: Sequence[Any], squared_norms: Any) -> Any:
        """Return a row of three figures per gradient, a float32 matrix.

        They are the largest absolute value, the number of entries that are not zero,
        and that of those that are not finite. If there are any of these, the first
        figure may be anything.

        Args:
            gradients: as they reached the update.
            squared_norms: what `squared_norms` gave for them.
        """
        ...

    def spaced_rows(self, matrix: Any, count: int, step: int) -> Any:
        """Return the first of every `step` rows of a matrix, `count` of them."""
        ...

    def size_bytes(self, gradient: Any) -> Any:
        """Return the bytes that hold the gradient: an int if it is dense.

        Of a sparse gradient it is a float32 scalar tensor: values and indices.
        """
        ...


class DirectWrites(Protocol):
    """Hands new values of some states into the step of a running `fit`."""

    def write(self, variable: Any, value: np.ndarray) -> None:
        """Set a variable of the optimizer before the next step."""
        ...

    def forget(self) -> None:
        """Leave out what was not handed in yet, because it was set in another way."""
        ...

    def release(self) -> None:
        """Give the model its step back; a second call is a no-op."""
        ...


class Backend(Protocol):
    """One adapter per framework, reached through `kerasmem.backends.current()`."""

    name: str
    """The name Keras gives the backend, such as `"jax"`."""

    runs_eagerly: bool
    """Whether an observer runs as plain Python in every step, not once in a trace."""

    pools_memory: bool
    """Whether the allocator of a GPU takes one pool, not segments of several sizes."""

    limits_itself: bool
    """Whether a running process can be kept to a limit of a GPU's memory."""

    copies_arrays: bool
    """Whether `fit` copies the arrays that it is given."""

    adds_along_any_axis: bool
    """Whether `keras.ops.add` takes an operand with one long axis for a bias, along
    whichever axis of the other one has its length."""

    recovers_logits: bool
    """Whether a loss of probabilities finds the logits before a float32 activation."""

    hands_state_on: bool
    """Whether a step gets all variables and gives them back, as on JAX."""

    converts_models: bool
    """Whether the converters to LiteRT and ONNX take functions of this framework."""

    fuses_fake_quantization: bool
    """Whether fake quantization in a range is one operation of the framework."""

    ops: Any
    """Some functions of `keras.ops` by their names, quick enough for every step."""

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return one reading per device, empty where the framework gives none."""
        ...

    def reset_device_peak(self) -> bool:
        """Start a new peak on every device; False where the framework cannot."""
        ...

    def observe_peak_resets(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer()` before anybody starts a new peak; return the undo.

        A device has one peak for all who read it: whoever still needs that of before
        takes it over in `observer`. A reset is seen that goes through the adapter or
        through the framework's public function, looked up when it is called.
        """
        ...

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        ...

    def input_bytes(self) -> int | None:
        """Return the bytes that the host holds ready for a device that trains.

        None where the framework does not count them, or no device but the CPU trains.
        """
        ...

    def refusals(self) -> AbstractContextManager[RefusalLog]:
        """Return a scope in which what an allocator refuses is noted."""
        ...

    def cpu_limit_bytes(self) -> int | None:
        """Return the most bytes the CPU allocator hands out, None without a limit."""
        ...

    def cuda_ordinals(self) -> dict[str, int]:
        """Return CUDA's number, from 0 among the visible, of each device's card."""
        ...

    def lazy_values(self) -> LazyValues:
        """Return how a variable comes by a value that it had not."""
        ...

    def looked_at(self, tensor: Any) -> np.ndarray:
        """Return a tensor's value, not to be written to: no copy if it is on a CPU."""
        ...

    def step_options(self) -> StepOptions:
        """Return what can be chosen of a step."""
        ...

    def settings(self) -> DeviceSettings:
        """Return what sets and tells how the framework takes its cards."""
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

    def step_state(
        self, optimizer: Any, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a state that starts as `value` and rides in compiled steps.

        On JAX call it before the step is traced; elsewhere also while it is.

        Args:
            optimizer: the optimizer that the steps update with.
            value: its first value.
            name: its name.
            like: a variable that it is laid out as over several devices; None for a
                copy on each.
        """
        ...

    def compiles_with_xla(self, model: Any) -> bool:
        """Return whether XLA compiles the training step of a compiled model."""
        ...

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return variables that stand for others inside a compiled step.

        Empty where a step reads the variables themselves. A compiled step of JAX sees
        only the state that is handed to it, and gives the memory of that state away,
        for good if the step is interrupted: so it takes copies.
        """
        ...

    def direct_writes(self, model: Any) -> DirectWrites | None:
        """Return what hands values into a running `fit`, None where `assign` does."""
        ...

    def training(self, model: Any) -> Training:
        """Return how `fit` trains a compiled model, and what a step changes."""
        ...

    def evaluation(self, model: Any) -> Steps:
        """Return how a compiled model is evaluated, and what a step changes."""
        ...

    def observe_gradients(
        self, optimizer: Any, observer: Observer
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo.

        The gradients are those that reach the update: unscaled, unclipped,
        accumulated, summed over replicas. The call happens inside the compiled
        step, so the observer sees tensors and may assign a `StepState`. What it
        returns, if it is not None, is called when the variables have been updated.
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

    def branches_cost(self, *, compiled: bool) -> bool:
        """Return whether a step without branches is worth a second compilation.

        Args:
            compiled: whether XLA compiles the step.
        """
        ...

    def masked(self, value: Any, kept: Any) -> Any:
        """Return what a variable becomes, with zeros where `kept` is False.

        Args:
            value: a float tensor, which may be overwritten.
            kept: a bool tensor of its shape.
        """
        ...

    def draws_in_trace(self) -> bool:
        """Return whether the step being traced draws from generators of its own.

        Two versions of such a step would draw other numbers than one.
        """
        ...

    def gradient_meter(self, *, compiled: bool) -> GradientMeter:
        """Return what measures gradients in a step, which XLA compiles or does not."""
        ...

    def recomputed(
        self, function: Function, store: Store | None = None, *, compiled: bool = False
    ) -> Function:
        """Return `function` with a backward pass that keeps only the arguments.

        The values are the same. When the gradient of the outputs is known, the rest is
        computed again from what was kept of the arguments.

        Args:
            function: takes tensors and returns a tuple of tensors; it is pure, so that
                every variable goes in and comes out as a tensor.
            store: how the arguments are kept; None for as they are.
            compiled: whether XLA compiles the step, where the backend must know.
        """
        ...

    def dense(self, gradient: Any) -> Any:
        """Return a gradient as a tensor of its variable's shape, also one of rows."""
        ...

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` so that no compiler of Python code looks into it."""
        ...

    def in_turn(
        self, gradient: Any, variable: Any
    ) -> AbstractContextManager[Callable[[Sequence[Any]], None]]:
        """Return a scope for the update of one variable, which waits for its turn.

        Where a graph would run all updates at once, what is made in the scope is made
        when the gradient is there and the update before is done. The scope gives what
        to call in it with the last tensors that are made.
        """
        ...

    def after(self, value: Any, other: Any, taken: Callable[[Any], Any]) -> Any:
        """Return `taken(value)`, of which nothing is made before `other` is there.

        A graph runs whatever has its inputs, and a compiler may put what needs little
        before all else: this holds it back. Where operations run one after the other
        as they are called, there is nothing to hold back.

        Args:
            value: a tensor that is there from the beginning.
            other: the tensor to wait for.
            taken: cuts out what is needed of a tensor.
        """
        ...

    def inference(self) -> AbstractContextManager[Any]:
        """Return a scope in which no backward pass is recorded."""
        ...

    def replicating(self, model: Any) -> AbstractContextManager[Any]:
        """Return a scope in which a variable is made for every replica of a model."""
        ...
