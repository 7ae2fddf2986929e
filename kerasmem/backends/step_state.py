"""State of compiled training steps that one backend's steps handle in their own way."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np


def is_compiled_by_xla(model: Any) -> bool:
    """Return whether XLA compiles the training step of a compiled model."""
    return keras.backend.backend() == "jax" or model.jit_compile is True


def copies_for_step(variables: Iterable[Any]) -> list[Any]:
    """Return variables that stand for others inside a compiled step, if it takes some.

    A compiled step of JAX sees only the state that is handed to it, and gives the
    memory of that state away, for good if the step is interrupted: so it takes copies.
    The other backends read the variables themselves: the list is empty.
    """
    if keras.backend.backend() != "jax":
        return []
    return [
        keras.Variable(keras.ops.copy(v.value), dtype=v.dtype, trainable=False)
        for v in variables
    ]


def direct_writes(model: Any) -> "DirectWrites | None":
    """Return what hands values into a running `fit` of JAX, None on other backends."""
    return DirectWrites(model) if keras.backend.backend() == "jax" else None


class DirectWrites:
    """Stands in for JAX's compiled step, and hands new values of some states in.

    Within an epoch all variables of a model are in the arguments of its step alone.
    To fetch them before every step would take a good part of the step's time.

    Args:
        model: the model of the running `fit`.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._step: Any = None
        self._pending: dict[int, np.ndarray] = {}

    def write(self, variable: Any, value: np.ndarray) -> None:
        """Set a variable of the optimizer before the next step."""
        model = self._model
        places = (i for i, v in enumerate(model.optimizer.variables) if v is variable)
        self._pending[next(places)] = value
        if model.train_function is not self:
            self._step, model.train_function = model.train_function, self

    def forget(self) -> None:
        """Leave out what was not handed in yet, because it was set in another way."""
        self._pending.clear()

    def release(self) -> None:
        """Give the model its step back; a second call is a no-op."""
        if self._model.train_function is self:
            self._model.train_function = self._step

    def __call__(self, state: Any, *arguments: Any) -> Any:
        """Run one training step."""
        if self._pending:
            trainable, others, optimizer, metrics = state
            handed_in = list(optimizer)
            for place, value in self._pending.items():
                handed_in[place] = value
            self._pending.clear()
            state = (trainable, others, handed_in, metrics)
        return self._step(state, *arguments)
