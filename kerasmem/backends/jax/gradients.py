"""Measuring gradients on JAX, once they stand."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from kerasmem.backends import folding


class JaxMeter:
    """Measures dense gradients; Keras has no others on JAX."""

    def squared_norms(self, gradients: Sequence[jax.Array]) -> jax.Array:
        """Return the square of the L2 norm of each, a float32 vector."""
        return jnp.stack([folding.squared_norm(_standing(g)) for g in gradients])

    def statistics(
        self,
        gradients: Sequence[jax.Array],
        squared_norms: jax.Array,
    ) -> jax.Array:
        """Return a row per gradient: largest, numbers of nonzero and nonfinite."""
        return jnp.stack([folding.statistics(_standing(g)) for g in gradients])

    def spaced_rows(self, matrix: jax.Array, count: int, step: int) -> jax.Array:
        """Return the first of every `step` rows of a matrix, `count` of them."""
        return matrix[: count * step : step]

    def size_bytes(self, gradient: jax.Array) -> int:
        """Return the bytes that hold the gradient."""
        return gradient.size * gradient.dtype.itemsize


def _standing(gradient: jax.Array) -> jax.Array:
    # Without the barrier XLA draws the operation that makes the gradient into the
    # loops that measure it: a step took up to 1.4 times as long.
    return jax.lax.optimization_barrier(gradient).astype("float32")
