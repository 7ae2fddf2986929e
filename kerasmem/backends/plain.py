"""What the adapters of JAX and torch have in common: what only TensorFlow needs."""

from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import keras
import numpy as np

from kerasmem.backends.gradients import nothing_to_undo
from kerasmem.backends.options import StepOptions
from kerasmem.backends.recompute import Function, Store
from kerasmem.backends.refusals import nothing_noted


class PlainBackend(ABC):
    """A framework with dense gradients, one order of updates and an uncounted CPU."""

    _recomputed: ClassVar[Callable[[Function, Store | None], Function]]
    step_options = StepOptions
    refusals = staticmethod(nothing_noted)

    def observe_peak_resets(
        self,
        observer: Callable[[], None],  # noqa: ARG002 - another backend needs it
    ) -> Callable[[], None]:
        """Return an undo that does nothing: there is no reset."""
        return nothing_to_undo

    def cpu_limit_bytes(self) -> int | None:
        """Return None: on a CPU there is no limit."""
        return None

    def recomputed(
        self,
        function: Function,
        store: Store | None = None,
        *,
        compiled: bool = False,  # noqa: ARG002 - another backend needs it
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
        other: Any,  # noqa: ARG002 - another backend needs it
        taken: Callable[[Any], Any],
    ) -> Any:
        """Return `taken(value)`: operations run one after the other."""
        return taken(value)

    def in_turn(
        self,
        gradient: Any,  # noqa: ARG002 - another backend needs it
        variable: Any,  # noqa: ARG002
    ) -> AbstractContextManager[Callable[[Sequence[Any]], None]]:
        """Return a scope that does nothing: one update is made after the other."""
        return nullcontext(lambda _: None)

    def replicating(self, model: Any) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Return a scope that does nothing: what trains has its copies already."""
        return nullcontext()
