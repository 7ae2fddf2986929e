"""TensorFlow variables: extra step state and lazy values."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from kerasmem.backends.lazy import LazyValues
from kerasmem.backends.variables import StepState, VariableBackend, hidden_variable
from kerasmem.types import Model, Optimizer, Tensor, Variable


class TensorFlowLazyValues(LazyValues):
    """Lazy values that are copied into TensorFlow variables on first use."""

    def why_not(self) -> str | None:
        """Return a reason in a strategy, which creates its variables immediately."""
        return "a tf.distribute strategy" if tf.distribute.has_strategy() else None

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a context outside of all graphs."""
        return tf.init_scope()

    def fill(self, variable: Variable, value: Any) -> None:
        """Create the TensorFlow variable."""
        # Keras's conversion returns a TensorFlow variable unchanged, which two Keras
        # variables would then share.
        variable._initialize(tf.convert_to_tensor(value))

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return symbolic zeros in a graph, or a broadcast scalar in eager mode."""
        if tf.executing_eagerly():
            return np.broadcast_to(
                np.zeros((), tf.as_dtype(dtype).as_numpy_dtype), shape
            )
        return tf.zeros(shape, dtype)


class TensorFlowVariables(VariableBackend):
    """TensorFlow variables."""

    lazy_values = TensorFlowLazyValues

    def step_state(
        self, optimizer: Optimizer, value: np.ndarray, name: str, like: Any = None
    ) -> StepState:
        """Return a variable outside of the model, also during tracing."""
        # `init_scope` creates the variable outside of the traced graph. With a
        # distribution strategy, Keras calls fit inside the strategy's scope.
        with tf.init_scope():
            return StepState(hidden_variable(value, name), lambda v: v.numpy())

    def read_only_array(self, tensor: Tensor) -> np.ndarray:
        """Return the read-only value of a tensor, without a copy on a CPU."""
        return np.asarray(tf.convert_to_tensor(tensor))  # `numpy` would copy

    def replicating(self, model: Model) -> AbstractContextManager[Any]:
        """Return a context in which variables have a copy per replica.

        Inside an open strategy scope, nothing changes.
        """
        if tf.distribute.has_strategy():
            return nullcontext()
        return model.distribute_strategy.scope()

    def sharing_of(self, strategy: Any | None) -> tuple[int, int]:
        """Return the number of replicas of the model's strategy, twice."""
        count = strategy.num_replicas_in_sync if strategy else 1
        return count, count
