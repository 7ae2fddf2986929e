"""TensorFlow's variables that had no value."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf


class TensorFlowLazyValues:
    """A variable of TensorFlow has memory of its own: one copy, when it is used."""

    adopts = False

    def why_not(self) -> str | None:
        """Return that a strategy wants its variables at once, if there is one."""
        return "a tf.distribute strategy" if tf.distribute.has_strategy() else None

    def placeholder(self, variable: Any) -> None:
        """Return None: a symbolic tensor takes the place."""
        return

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a scope that leaves every graph."""
        return tf.init_scope()

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros that a graph would make, or one number seen many times."""
        if tf.executing_eagerly():
            return np.broadcast_to(
                np.zeros((), tf.as_dtype(dtype).as_numpy_dtype), shape
            )
        return tf.zeros(shape, dtype)

    def fill(self, variable: Any, value: Any) -> None:
        """Make the variable of TensorFlow below."""
        # Private, as in all backends: what Keras calls to give the first value.
        variable._initialize(tf.convert_to_tensor(value))
