"""What the adapters of JAX and torch have in common: what only TensorFlow needs."""

from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import keras
import numpy as np

from kerasmem.backends.exhaustion import nothing_noted
from kerasmem.backends.gradients import nothing_to_undo
from kerasmem.backends.options import StepOptions
from kerasmem.backends.recompute import Function, Store


class PlainBackend(ABC):
    """A framework with dense gradients, one order of updates and an uncounted CPU."""

    _recomputed: ClassVar[Callable[[Function, Store | None], Function]]
    step_options = StepOptions
    refusals = staticmethod(nothing_noted)

    def observe_peak_resets(
        self,
        observer: Callable[[], None],
    ) -> Callable[[], None]:
        """Return an undo that does nothing: there is no reset."""
        return nothing_to_undo

    def compiles_with_xla(self, model: Any) -> bool:
        """Return whether XLA compiles the training step of a compiled model."""
        return model.jit_compile is True

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return none: a step reads the variables themselves."""
        return []

    def direct_writes(self, model: Any) -> Any:
        """Return None: `assign` sets a variable at any time."""
        return None

    def cpu_limit_bytes(self) -> int | None:
        """Return None: on a CPU there is no limit."""
        return None

    def recomputed(
        self,
        function: Function,
        store: Store | None = None,
        *,
        compiled: bool = False,
    ) -> Function:
        """Return `function` with a backward pass that keeps only the arguments."""
        return type(self)._recomputed(function, store)

    def looked_at(self, tensor: Any) -> np.ndarray:
        """Return a tensor's value, not to be written to: no copy if it is on a CPU."""
        return keras.ops.convert_to_numpy(tensor)

    def dense(self, gradient: Any) -> Any:
        """Return the gradient: none is sparse here."""
        return gradient

    def after(
        self,
        value: Any,
        other: Any,
        taken: Callable[[Any], Any],
    ) -> Any:
        """Return `taken(value)`: operations run one after the other."""
        return taken(value)

    def in_turn(
        self,
        gradient: Any,
        variable: Any,
    ) -> AbstractContextManager[Callable[[Sequence[Any]], None]]:
        """Return a scope that does nothing: one update is made after the other."""
        return nullcontext(lambda _: None)

    def replicating(self, model: Any) -> AbstractContextManager[Any]:
        """Return a scope that does nothing: what trains has its copies already."""
        return nullcontext()
