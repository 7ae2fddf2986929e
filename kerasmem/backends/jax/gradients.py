"""The gradients of a JAX step."""

from collections.abc import Callable
from typing import Any

import jax
import keras

from kerasmem.backends.gradients import (
    GradientBackend,
    innermost,
    scales_loss,
)
from kerasmem.backends.patching import nothing_to_undo, patch_method


class JaxGradients(GradientBackend):
    """The gradients of a JAX step, all of them dense."""

    def check_optimizer(self, optimizer: Any) -> None:
        """Check that the optimizer's `stateless_apply` is one of Keras."""
        kind = type(innermost(optimizer))
        if not kind.stateless_apply.__module__.startswith("keras."):
            raise TypeError(f"{kind.__name__} has its own `stateless_apply`")

    def observe_loss_scaling(
        self, optimizer: Any, observer: Callable[[Any], None]
    ) -> Callable[[], None]:
        """Call `observer(finite)` in every step of a loss scaling optimizer."""
        if not scales_loss(optimizer):
            return nothing_to_undo

        # Keras asks `check_finite` outside of any stateless scope, where nothing
        # can be assigned; so it is asked once more, around the whole update.
        def apply(original: Any, state: Any, gradients: Any, trainable: Any) -> Any:
            finite = optimizer.check_finite(gradients)
            trainable, state = original(state, gradients, trainable)
            variables = optimizer.variables
            mapping = list(zip(variables, state, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                observer(finite)
            return trainable, [scope.get_current_value(v) for v in variables]

        return patch_method(optimizer, "stateless_apply", apply)

    def _float32(self, gradient: jax.Array) -> jax.Array:
        # Without the barrier XLA draws the operation that makes the gradient into the
        # loops that measure it: a step took up to 1.4 times as long.
        return jax.lax.optimization_barrier(gradient).astype("float32")
