"""What rides in a training step, and how where a step may assign any variable."""

from collections.abc import Callable
from typing import Any, Protocol

import keras
import numpy as np


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


class VariableState:
    """A `StepState` around a variable that nothing else knows of.

    Args:
        variable: the `keras.Variable`.
        to_numpy: turns the framework's own variable in it into an array. Keras does
            so with a deprecation warning of NumPy, on TensorFlow and torch.
    """

    def __init__(self, variable: Any, to_numpy: Callable[[Any], np.ndarray]) -> None:
        self.variable = variable
        self._to_numpy = to_numpy

    def read(self) -> np.ndarray:
        """Return a copy of the current value."""
        return self._to_numpy(self.variable.value).copy()

    def write(self, value: np.ndarray) -> None:
        """Set the value."""
        self.variable.assign(value)

    def release(self) -> None:
        """Do nothing: there is nothing to take the variable out of."""


def hidden_variable(value: np.ndarray, name: str) -> Any:
    """Return a `keras.Variable` with `value` that no layer or optimizer tracks."""
    return keras.Variable(
        value,
        dtype=str(value.dtype),
        trainable=False,
        aggregation="only_first_replica",
        name=name,
    )
