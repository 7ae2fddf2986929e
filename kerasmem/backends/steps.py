"""How a framework's `fit` calls its training step, and what a step changes."""

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
"""A model's `train_step` or `test_step`, or what stands in for it."""
Count = Callable[[Sequence[tuple[Any, Any]], Any], Any]
"""Returns a vector for a batch, where variables have the values paired with them."""


class BatchPart(NamedTuple):
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


class Steps(ABC):
    """One model that a `fit` of this framework trains, or evaluates meanwhile.

    `state` is what a step is given and returns where steps are pure functions, as on
    JAX; elsewhere it is None, and the variables hold the state.

    Args:
        model: the compiled model.
        kind: `"train"` or `"test"`, as Keras names its functions.

    Attributes:
        survives_failure: whether variables can be written when a step has run out of
            memory.
    """

    survives_failure: bool = True
    take_rows = staticmethod(splitting.rows)

    def __init__(self, model: Model, kind: str) -> None:
        self._model = model
        self._kind = kind

    @property
    def step(self) -> Step:
        """The model's own step."""
        return getattr(self._model, f"{self._kind}_step")

    @abstractmethod
    def unpack(self, arguments: Sequence[Any]) -> tuple[Any, Iterator[Any]]:
        """Return state and batches of what Keras gave its function."""

    @abstractmethod
    def run(self, function: Step, state: Any, batch: Tensors) -> tuple[Any, Any]:
        """Return logs and state after `function` had one batch."""

    @abstractmethod
    def pack(self, logs: Logs, state: Any) -> Any:
        """Return what Keras expects of its function."""

    @abstractmethod
    def wait(self, logs: Logs, state: Any) -> None:
        """Wait until the device has done what it was told."""

    @abstractmethod
    def snapshot(self, state: Any) -> Any:
        """Return a copy, on the host, of all that steps change."""

    @abstractmethod
    def restore(self, snapshot: Any, state: Any) -> Any:
        """Put back what `snapshot` has; return the state to go on with."""

    def is_intact(self, state: Any) -> bool:
        """Return whether the step that has just failed is sure to have changed none."""
        return False

    def give_up(self, state: Any) -> None:  # noqa: B027 - mostly there is none
        """Leave the model with `state`, because an error is about to end the fit."""

    def values(self, state: Any) -> AbstractContextManager[Any]:
        """Return a scope in which the variables have the values of `state`."""
        return nullcontext()

    @abstractmethod
    def function_of(self, step: Step) -> Step:
        """Return what Keras makes of a step: compiled and distributed.

        Args:
            step: takes and returns what the model's own does.
        """

    def split(self, batch: Tensors, parts: int) -> list[Any]:
        """Return a batch in so many parts, of nearly one size.

        Raises:
            DataError: if the arrays in it are of different lengths.
        """
        pieces = [
            splitting.split(local, parts, self.take_rows)
            for local in self.on_replicas(batch)
        ]
        return [self._together(part) for part in zip(*pieces, strict=True)]

    def size(self, batch: Tensors) -> int:
        """Return the number of samples, the least that a replica has.

        It is 1 if the batch cannot be split, because its arrays are of different
        lengths or one of them is empty.
        """
        return min(map(splitting.splittable_length, self.on_replicas(batch)))

    def shape(self, batch: Tensors) -> tuple[int, ...]:
        """Return the lengths of all axes of all arrays in a batch."""
        local = map(splitting.axes_of, self.on_replicas(batch))
        return tuple(length for axes in local for length in axes)

    @abstractmethod
    def counting(self, count: Count) -> Callable[[Any, Any], Any]:
        """Return a function of state and batch that calls `count`, compiled.

        It gives `weigh` what a part's losses are means of, on each replica.
        """

    def weigh(
        self, parts: Sequence[Any], valid: Sequence[Any] | None
    ) -> list[tuple[Any, Any]]:
        """Return each part with what it counts, see `splitting.weights`.

        Args:
            parts: what `split` returned.
            valid: what `counting` gave for each; None for means over the samples.
        """
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
        """Give back to the device what nothing holds any more."""
        gc.collect()

    def scope(self) -> AbstractContextManager[Any]:
        """Return the scope in which variables of this training are made."""
        return nullcontext()

    @abstractmethod
    def replace_update(
        self, sums: Mapping[int, GradientSum], part: Callable[[], BatchPart | None]
    ) -> Callable[[], None]:
        """Have the optimizer add up gradients in steps that run a part of a batch.

        Args:
            sums: the sums of gradients, by the `id` of the variable.
            part: asked while a step is traced or runs; None for the optimizer's own
                update.

        Returns:
            the undo.
        """

    def adopt(self, state: Any, variables: Sequence[Any]) -> Any:
        """Return the state for the variables that the optimizer has now.

        Args:
            state: the state of before.
            variables: the variables that the optimizer had before; those that came
                since start from zero.
        """
        return state

    def on_replicas(self, values: Any) -> list[Any]:
        """Return what each replica has of a batch, or of a tensor."""
        return [values]

    def _together(self, by_replica: Sequence[Any]) -> Any:
        return by_replica[0]

    def _to_array(self, count: Any) -> np.ndarray:
        return np.asarray(count)

    def _to_tensors(self, share: Any, factors: Any) -> tuple[Any, Any]:
        return share, factors


class StepBackend(ABC):
    """How a framework compiles steps, runs them and feeds them."""

    runs_eagerly: bool = False
    """Whether an observer runs as plain Python in every step, not once in a trace."""

    ops: Any = keras.ops
    """Some functions of `keras.ops` by their names, quick enough for every step."""

    steps: type[Steps]
    """How `fit` trains or evaluates a compiled model, and what a step changes."""

    def training(self, model: Model) -> Steps:
        """Return how `fit` trains a compiled model, and what a step changes."""
        return self.steps(model, "train")

    def evaluation(self, model: Model) -> Steps:
        """Return how a compiled model is evaluated, and what a step changes."""
        return self.steps(model, "test")

    def weighs_batches_alike(self, model: Model) -> bool:
        """Return whether a smaller batch counts as much in the losses of outputs."""
        return False

    def compiles_with_xla(self, model: Model) -> bool:
        """Return whether XLA compiles the training step of a compiled model."""
        return model.jit_compile is True

    @abstractmethod
    def traces(self, model: Model) -> int | None:
        """Return how many times the training step of `model` was traced so far.

        None before the first step, and where the framework does not count.
        """

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` so that no compiler of Python code looks into it."""
        return function

    def inference(self) -> AbstractContextManager[Any]:
        """Return a scope in which no backward pass is recorded."""
        return nullcontext()


def build_for(model: Model, batch: Tensors) -> None:
    """Build what the first step on `batch` would build: layers, slots, metrics.

    Else they would come to be in the midst of a step that may fail. A model that can
    only be built by a real call is left to the step.
    """
    with suppress(RuntimeError, ValueError, TypeError, AttributeError):
        # Private: what Keras itself calls first in `fit`, on JAX and torch always.
        model._symbolic_build(data_batch=batch)


_COUNTERS = ("experimental_get_tracing_count", "_cache_size")
"""Methods by which the compiled functions of TensorFlow and JAX tell their traces."""


def count_traces(model: Model, counter: str) -> int | None:
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
    # Private: `model.train_function` is a plain function, and the compiled ones are in
    # its closure. Keras has no public way to them.
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
    """A compiled function and how often it was traced.

    Args:
        function: a weak reference to it.
        name: of what it compiles.
        traces: number of its traces.
    """

    function: "weakref.ref[Any]"
    name: str
    traces: int


_own = type.__dict__["__dict__"].__get__
"""Returns the attributes of a type itself, without code of its metaclass."""


def traced_functions(objects: Iterable[Any]) -> dict[int, Traced]:
    """Return the compiled functions among some objects by identity.

    Args:
        objects: any; TensorFlow's and JAX's kinds of compiled functions are looked at.
    """
    counters: dict[type, str | None] = {}
    by_id: dict[int, Traced] = {}
    for each in objects:
        kind = type(each)
        if kind not in counters:
            has = (n for n in _COUNTERS for b in type.mro(kind) if n in _own(b))
            counters[kind] = next(has, None)
        counter = counters[kind]
        # JAX's own functions, such as broadcast_in_dim, are traced for any shape.
        module = getattr(each, "__module__", "") if counter is not None else ""
        if counter is not None and not str(module).startswith("jax."):
            name = str(getattr(each, "__name__", kind.__name__))
            number = getattr(each, counter)()
            by_id[id(each)] = Traced(weakref.ref(each), name, number)
    return by_id
