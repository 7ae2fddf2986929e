"""TensorFlow's variables: those of a step, and such that had no value."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from kerasmem.backends.lazy import LazyValues
from kerasmem.backends.variables import StepState, VariableBackend, hidden_variable
from kerasmem.types import Model, Optimizer, Tensor, Variable


class TensorFlowLazyValues(LazyValues):
    """A variable of TensorFlow has memory of its own: one copy, when it is used."""

    def why_not(self) -> str | None:
        """Return that a strategy wants its variables at once, if there is one."""
        return "a tf.distribute strategy" if tf.distribute.has_strategy() else None

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a scope that leaves every graph."""
        return tf.init_scope()

    def fill(self, variable: Variable, value: Any) -> None:
        """Make the variable of TensorFlow below."""
        # Keras's own conversion returns a variable of TensorFlow as it is, and two
        # variables of Keras would share it.
        variable._initialize(tf.convert_to_tensor(value))

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros that a graph would make, or one number seen many times."""
        if tf.executing_eagerly():
            return np.broadcast_to(
                np.zeros((), tf.as_dtype(dtype).as_numpy_dtype), shape
            )
        return tf.zeros(shape, dtype)


class TensorFlowVariables(VariableBackend):
    """What TensorFlow makes of variables."""

    lazy_values = TensorFlowLazyValues

    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a variable outside of the model, also while a step is traced."""
        # init_scope lifts the variable out of the graph that is being traced. Under
        # a distribution strategy Keras calls fit inside of its scope.
        with tf.init_scope():
            return StepState(hidden_variable(value, name), lambda v: v.numpy())

    def read_only_array(self, tensor: Tensor) -> np.ndarray:
        """Return a tensor's value, not to be written to: no copy if it is on a CPU."""
        return np.asarray(tf.convert_to_tensor(tensor))  # `numpy` makes a copy

    def replicating(self, model: Model) -> AbstractContextManager[Any]:
        """Return a scope in which a variable has a copy for each replica.

        Where a scope is open already, it is the caller's choice.
        """
        if tf.distribute.has_strategy():
            return nullcontext()
        return model.distribute_strategy.scope()

    def sharing_of(self, strategy: Any | None) -> tuple[int, int]:
        """Return the number of replicas of the strategy that a model was made under."""
        count = strategy.num_replicas_in_sync if strategy else 1
        return count, count
