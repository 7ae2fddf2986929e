"""Gradients of a JAX training step."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from kerasmem.backends.gradients import GradientBackend, Upstream, innermost
from kerasmem.backends.recompute import Function
from kerasmem.types import Optimizer


class JaxGradients(GradientBackend):
    """Gradients of a JAX training step, all of them dense."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Check that the optimizer uses a `stateless_apply` of Keras."""
        kind = type(innermost(optimizer))
        if not kind.stateless_apply.__module__.startswith("keras."):
            raise TypeError(f"{kind.__name__} has its own `stateless_apply`")

    def _float32(self, gradient: jax.Array) -> jax.Array:
        # Without the barrier, XLA fuses the gradient into the loops that measure it. A
        # step then takes up to 1.4 times as long.
        return jax.lax.optimization_barrier(gradient).astype("float32")

    def _gradients_of(
        self, function: Function, tensors: Sequence[Any], upstream: Upstream
    ) -> list[Any]:
        outputs, pullback = jax.vjp(function, *tensors)
        return list(pullback(tuple(upstream(outputs))))

    def _reduced(self, figures: Sequence[Any], **axis: int) -> list[Any]:
        # One reduction compiles and runs several times as fast as one per figure.
        def combine(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
            sums = (x + y for x, y in zip(a[1:], b[1:], strict=True))
            return (jax.lax.max(a[0], b[0]), *sums)

        zeros = tuple(np.zeros((), figure.dtype) for figure in figures)
        axes = [axis["axis"]] if axis else range(figures[0].ndim)
        return [*jax.lax.reduce(tuple(figures), zeros, combine, tuple(axes))]
