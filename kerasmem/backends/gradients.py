"""Where in a Keras optimizer the gradient stands that reaches the update."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from kerasmem.backends.shadow import shadow

Observer = Callable[[Sequence[Any], Sequence[Any]], None]


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that updates, below any that only scale the loss."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def observe_updates(optimizer: Any, observer: Observer) -> Callable[[], None]:
    """Call `observer(gradients, variables)` in every update; return the undo."""
    optimizer = innermost(optimizer)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return _observe_apply(optimizer, observer)
    return _observe_clipping(optimizer, observer)


def _observe_clipping(optimizer: Any, observer: Observer) -> Callable[[], None]:
    # Private, for want of a public place: `apply` still has scaled gradients of
    # micro-batches, and `update_step` has clipped ones. `_clip_gradients` gets them
    # unscaled and accumulated, `_backend_apply_gradients` around it knows whose
    # they are. With accumulation JAX runs this code in every step, and takes the
    # assignments of a step without an update back.
    being_applied: list[Any] = []

    def remember(original: Any, gradients: Any, variables: Any) -> Any:
        being_applied[:] = variables
        return original(gradients, variables)

    def observe(original: Any, gradients: Any) -> Any:
        observer(gradients, tuple(being_applied))
        return original(gradients)

    undo_remember = shadow(optimizer, "_backend_apply_gradients", remember)
    undo_observe = shadow(optimizer, "_clip_gradients", observe)

    def undo() -> None:
        undo_observe()
        undo_remember()

    return undo


def _observe_apply(optimizer: Any, observer: Observer) -> Callable[[], None]:
    # The optimizers below see a part of the gradient each, so it is read on top.
    def observe(original: Any, gradients: Any, trainable_variables: Any = None) -> Any:
        variables = trainable_variables or optimizer._trainable_variables
        scale = optimizer.loss_scale_factor
        pairs = [
            (gradient if scale is None else gradient / scale, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
            if gradient is not None
            and not getattr(variable, "overwrite_with_gradient", False)
        ]
        observer([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        return original(gradients, trainable_variables)

    return shadow(optimizer, "apply", observe)


def observe_finiteness(
    optimizer: Any, observer: Callable[[Any], None]
) -> Callable[[], None]:
    """Call `observer(finite)` where a loss scaling optimizer asks; return the undo."""

    def observe(original: Any, gradients: Any) -> Any:
        finite = original(gradients)
        observer(finite)
        return finite

    return shadow(optimizer, "check_finite", observe)


def scales_loss(optimizer: Any) -> bool:
    """Return True if the optimizer scales the loss and skips nonfinite gradients."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def nothing_to_undo() -> None:
    """Do nothing: the undo of a hook that was not needed."""
