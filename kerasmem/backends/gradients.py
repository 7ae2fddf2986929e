"""Where in a Keras optimizer the gradient stands that reaches the update."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import keras

from kerasmem.backends.patching import patch_method

Observer = Callable[[Sequence[Any], Sequence[Any]], Callable[[], None] | None]
"""Called with gradients and variables; what it returns is called after the update."""


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that updates, below any that only scale the loss."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def observe_updates(optimizer: Any, observer: Observer) -> Callable[[], None]:
    """Call `observer(gradients, variables)` in every update; return the undo.

    What the observer returns, if it is not None, is called when the variables have
    been updated, before any constraint.
    """
    optimizer = innermost(optimizer)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return _observe_apply(optimizer, observer)
    return _observe_clipping(optimizer, observer)


def _observe_clipping(optimizer: Any, observer: Observer) -> Callable[[], None]:
    # Private, for want of a public place: `apply` still has scaled gradients of
    # micro-batches, and `update_step` has clipped ones. `_clip_gradients` gets them
    # unscaled and accumulated, `apply` around it knows whose they are, and after
    # `_backend_update_step` these have moved. With accumulation JAX runs this code in
    # every step, and takes the assignments of a step without an update back. A
    # strategy runs every replica in a thread of its own.
    step = threading.local()

    def remember(original: Any, gradients: Any, variables: Any) -> Any:
        step.variables = [variable for _, variable in _updated(gradients, variables)]
        return original(gradients, variables)

    def observe(original: Any, gradients: Any) -> Any:
        step.finish = observer(gradients, step.variables)
        return original(gradients)

    def finish(original: Any, *arguments: Any) -> Any:
        updated = original(*arguments)
        if step.finish is not None:
            step.finish()
        return updated

    with ExitStack() as undo:
        undo.callback(around_apply(optimizer, remember))
        undo.callback(patch_method(optimizer, "_clip_gradients", observe))
        undo.callback(patch_method(optimizer, "_backend_update_step", finish))
        return undo.pop_all().close


def _observe_apply(optimizer: Any, observer: Observer) -> Callable[[], None]:
    # The optimizers below see a part of the gradient each, so it is read on top.
    def observe(original: Any, gradients: Any, variables: Any) -> Any:
        scale = optimizer.loss_scale_factor
        pairs = [
            (gradient if scale is None else gradient / scale, variable)
            for gradient, variable in _updated(gradients, variables)
        ]
        finish = observer([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        updated = original(gradients, variables)
        if finish is not None:
            finish()
        return updated

    return around_apply(optimizer, observe)


def _updated(
    gradients: Sequence[Any], variables: Sequence[Any]
) -> list[tuple[Any, Any]]:
    """Return the gradients that update a variable, with it, as Keras chooses them."""
    return [
        (gradient, variable)
        for gradient, variable in zip(gradients, variables, strict=True)
        if gradient is not None
        and not getattr(variable, "overwrite_with_gradient", False)
    ]


def around_apply(
    optimizer: Any, wrapper: Callable[[Callable[..., Any], list[Any], list[Any]], Any]
) -> Callable[[], None]:
    """Call `wrapper(original, gradients, variables)` in place of `apply`.

    Args:
        optimizer: the optimizer. On JAX, the one that updates.
        wrapper: is given the variables also where the caller left them out.

    Returns:
        the undo.
    """

    def apply(original: Any, grads: Any, trainable_variables: Any = None) -> Any:
        # Private: the variables it was built for, which is what `apply` itself takes.
        variables = trainable_variables or optimizer._trainable_variables
        return wrapper(original, list(grads), list(variables))

    return patch_method(optimizer, "apply", apply)


def observe_finiteness(
    optimizer: Any, observer: Callable[[Any], None]
) -> Callable[[], None]:
    """Call `observer(finite)` where a loss scaling optimizer asks; return the undo.

    Without loss scaling nothing is called.
    """
    if not scales_loss(optimizer):
        return nothing_to_undo

    def observe(original: Any, gradients: Any) -> Any:
        finite = original(gradients)
        observer(finite)
        return finite

    return patch_method(optimizer, "check_finite", observe)


def scales_loss(optimizer: Any) -> bool:
    """Return True if the optimizer scales the loss and skips nonfinite gradients."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def nothing_to_undo() -> None:
    """Do nothing: the undo of a hook that was not needed."""
