"""Training steps of a framework and their state."""

import gc
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np

from kerasmem.backends import splitting
from kerasmem.backends.variables import StepState
from kerasmem.types import Logs, Model, Tensors

Step = Callable[..., Any]
"""The `train_step` or `test_step` of a model, or a replacement."""
Count = Callable[[Sequence[tuple[Any, Any]], Any], Any]
"""Returns a vector for a batch, with variables replaced by the paired values."""


class BatchPart(NamedTuple):
    """A part of a batch with its weight. The sum is applied after the last part."""

    share: Any
    is_last: bool


@dataclass(eq=False)
class GradientSum:
    """The sum of the gradients of one variable over the parts of a batch.

    `is_reached` is True if any part, or any traced part, had a gradient.
    """

    state: StepState
    is_reached: bool = False

    @property
    def variable(self) -> Any:
        """The `keras.Variable` to read and assign inside the step."""
        return self.state.variable

    @property
    def value(self) -> Any:
        """The current sum."""
        return self.state.variable.value


class Steps(ABC):
    """Training or evaluation steps of one model, with `kind` `"train"` or `"test"`.

    `state` is the argument and result of steps that are pure functions, as in JAX.
    Otherwise `state` is None and the variables have the state. `survives_failure` is
    False if variables cannot be written after a step ran out of memory.
    """

    survives_failure: bool = True
    take_rows = staticmethod(splitting.rows)

    def __init__(self, model: Model, kind: str) -> None:
        self._model = model
        self._kind = kind

    @property
    def step(self) -> Step:
        """The step of the model."""
        return getattr(self._model, f"{self._kind}_step")

    @abstractmethod
    def unpack(self, arguments: Sequence[Any]) -> tuple[Any, Iterator[Any]]:
        """Return state and batches from the arguments of Keras's function."""

    @abstractmethod
    def run(self, function: Step, state: Any, batch: Tensors) -> tuple[Any, Any]:
        """Run `function` on one batch and return logs and state."""

    @abstractmethod
    def pack(self, logs: Logs, state: Any) -> Any:
        """Return the result of Keras's function."""

    @abstractmethod
    def wait(self, logs: Logs, state: Any) -> None:
        """Wait for the device."""

    @abstractmethod
    def snapshot(self, state: Any) -> Any:
        """Copy all values that steps change to the host."""

    @abstractmethod
    def restore(self, snapshot: Any, state: Any) -> Any:
        """Restore a snapshot and return the state for the next step."""

    def is_intact(self, state: Any) -> bool:
        """Return whether the failed step certainly changed nothing."""
        return False

    def give_up(self, state: Any) -> None:  # noqa: B027 - usually there is no state
        """Set the state of the model before an error ends the fit."""

    def values(self, state: Any) -> AbstractContextManager[Any]:
        """Return a context in which the variables have the values of `state`."""
        return nullcontext()

    @abstractmethod
    def function_of(self, step: Step) -> Step:
        """Compile and distribute a step as Keras does."""

    def split(self, batch: Tensors, parts: int) -> list[Any]:
        """Split a batch into parts of nearly equal size, see `splitting.split`."""
        pieces = [
            splitting.split(local, parts, self.take_rows)
            for local in self.on_replicas(batch)
        ]
        return [self._together(part) for part in zip(*pieces, strict=True)]

    def size(self, batch: Tensors) -> int:
        """Return the smallest number of samples per replica.

        1 if the batch cannot be split: its arrays differ in length, or one is empty.
        """
        return min(map(splitting.splittable_length, self.on_replicas(batch)))

    def shape(self, batch: Tensors) -> tuple[int, ...]:
        """Return the lengths of all axes of all arrays in a batch."""
        local = map(splitting.axes_of, self.on_replicas(batch))
        return tuple(length for axes in local for length in axes)

    @abstractmethod
    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a compiled function of state and batch that calls `count`.

        Its results are the divisors of the losses per replica, for `weigh`.
        """

    def weigh(
        self, parts: Sequence[Any], valid: Sequence[Any] | None
    ) -> list[tuple[Any, Any]]:
        """Return each part with its weight, see `splitting.weights`."""
        local = [self.on_replicas(part) for part in parts]
        valid_parts = None if valid is None else [*map(self.on_replicas, valid)]
        by_replica = [
            splitting.weights(
                [splitting.length_of(part[replica]) for part in local],
                [self._to_array(each[replica]) for each in valid_parts]
                if valid_parts is not None
                else None,
            )
            for replica in range(len(local[0]))
        ]
        return [
            (part, self._together([self._to_tensors(*each) for each in own]))
            for part, own in zip(parts, zip(*by_replica, strict=True), strict=True)
        ]

    def free(self) -> None:
        """Free unreferenced device memory."""
        gc.collect()

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context for creating variables of this training."""
        return nullcontext()

    @abstractmethod
    def replace_update(
        self, sums: Mapping[int, GradientSum], part: Callable[[], BatchPart | None]
    ) -> Callable[[], None]:
        """Make the optimizer accumulate gradients in micro-batch steps.

        Returns the undo function. `sums` has the `id` of variables as keys. `part`
        returns the part of the current step, or None for a normal update. It is called
        during tracing or execution.
        """

    def adopt(self, state: Any, variables: Sequence[Any]) -> Any:
        """Return the state with the current variables of the optimizer.

        New variables start from zero.
        """
        return state

    def on_replicas(self, values: Any) -> list[Any]:
        """Return the local part of a batch or tensor on each replica."""
        return [values]

    def _together(self, by_replica: Sequence[Any]) -> Any:
        return by_replica[0]

    def _to_array(self, count: Any) -> np.ndarray:
        return np.asarray(count)

    def _to_tensors(self, share: Any, factors: Any) -> tuple[Any, Any]:
        return share, factors


class StepBackend(ABC):
    """Compilation, execution and input of steps in a framework."""

    runs_eagerly: bool = False
    """Whether an observer runs as Python code in every step, not once in a trace."""

    ops: Any = keras.ops
    """Functions of `keras.ops` by name, fast enough for every step."""

    steps: type[Steps]
    """Class of the steps of a compiled model."""

    def training(self, model: Model) -> Steps:
        """Return the training steps of a compiled model."""
        return self.steps(model, "train")

    def evaluation(self, model: Model) -> Steps:
        """Return the evaluation steps of a compiled model."""
        return self.steps(model, "test")

    def weighs_batches_alike(self, model: Model) -> bool:
        """Return whether losses of outputs ignore the size of a batch."""
        return False

    @abstractmethod
    def traces(self, model: Model) -> int | None:
        """Return the number of traces of the training step of `model`.

        None before the first step, or if the framework has no count.
        """

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Exclude `function` from compilation of Python code."""
        return function

    def inference(self) -> AbstractContextManager[Any]:
        """Return a context that records no backward pass."""
        return nullcontext()


def build_for(model: Model, batch: Tensors) -> None:
    """Create layers, slots and metrics before the first step on `batch`.

    Otherwise they would be created inside a step that may fail. Models that need a real
    call are not built here.
    """
    with suppress(RuntimeError, ValueError, TypeError, AttributeError):
        # Private: Keras's `fit` calls this method first, always on JAX and torch.
        model._symbolic_build(data_batch=batch)


_COUNTERS = ("experimental_get_tracing_count", "_cache_size")
"""Methods of compiled TensorFlow and JAX functions that return the trace count."""


def count_traces(model: Model, counter: str) -> int | None:
    """Return the trace count of the training step, None before the first step.

    `counter` is the name of the method of compiled functions that returns the count.
    """
    function = getattr(model, "train_function", None)
    counts = [getattr(f, counter)() for f in compiled_functions(function, counter)]
    # The step consists of nested compiled functions.
    return max(counts, default=None)


def compiled_functions(function: Any, method: str) -> list[Callable[..., Any]]:
    """Return the compiled functions that a training step calls, those with `method`."""
    # Private: `model.train_function` is a plain function whose closure contains the
    # compiled functions. Keras has no public access to them.
    functions: list[Callable[..., Any]] = []
    waiting, visited_ids = [function], {id(function)}
    while waiting:
        function = waiting.pop()
        if hasattr(function, method):
            functions.append(function)
            continue
        cells = getattr(function, "__closure__", None) or ()
        inside = [cell.cell_contents for cell in cells]
        new = [
            each for each in inside if callable(each) and id(each) not in visited_ids
        ]
        visited_ids |= {id(each) for each in new}
        waiting += new
    return functions


class Traced(NamedTuple):
    """A weak reference to a compiled function, its name and its number of traces."""

    function: "weakref.ref[Any]"
    name: str
    traces: int


_own = type.__dict__["__dict__"].__get__
"""Returns the attributes of a type without running code of its metaclass."""


def traced_functions(objects: Iterable[Any]) -> dict[int, Traced]:
    """Return the compiled TensorFlow and JAX functions among objects, by `id`."""
    counters: dict[type, str | None] = {}
    by_id: dict[int, Traced] = {}
    for each in objects:
        kind = type(each)
        if kind not in counters:
            has = (n for n in _COUNTERS for b in type.mro(kind) if n in _own(b))
            counters[kind] = next(has, None)
        counter = counters[kind]
        # JAX functions such as broadcast_in_dim have a trace per shape.
        module = getattr(each, "__module__", "") if counter is not None else ""
        if counter is not None and not str(module).startswith("jax."):
            name = str(getattr(each, "__name__", kind.__name__))
            number = getattr(each, counter)()
            by_id[id(each)] = Traced(weakref.ref(each), name, number)
    return by_id
