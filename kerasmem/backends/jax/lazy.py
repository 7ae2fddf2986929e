"""JAX's variables that had no value."""

from contextlib import AbstractContextManager
from typing import Any

import jax
import keras


class JaxLazyValues:
    """An array of JAX is made of one of NumPy when it is used."""

    adopts = False

    def why_not(self) -> str | None:
        """Return that NNX keeps values in a place of its own, if it does."""
        return "NNX" if keras.config.is_nnx_enabled() else None

    def placeholder(self, variable: Any) -> None:
        """Return None: a traced array takes the place."""
        return

    def outside_of_traces(self) -> AbstractContextManager[Any]:
        """Return a scope in which nothing is traced."""
        return jax.ensure_compile_time_eval()

    def described(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return zeros, which a trace does not make."""
        return jax.numpy.zeros(shape, dtype)

    def fill(self, variable: Any, value: Any) -> None:
        """Make the array, laid out over devices as the variable is to be."""
        # Private, as in all backends: what Keras calls to give the first value.
        variable._initialize(variable._convert_to_tensor(value, variable._dtype))
