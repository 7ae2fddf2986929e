"""The gradients that reach an update: where they stand in it, and their figures."""

import math
import threading
from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import keras
import numpy as np
from keras import ops

from kerasmem.backends.patching import patch_method
from kerasmem.types import Optimizer, Tensor, Variable

Observer = Callable[[Sequence[Any], Sequence[Any]], Callable[[], None] | None]
"""Called with gradients and variables; what it returns is called after the update."""


def innermost(optimizer: Optimizer) -> Any:
    """Return the optimizer that updates, below any that only scale the loss."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


class _Update(threading.local):
    """One call of the observer. Each replica of a strategy runs in its own thread.

    No method returns a value to branch on: compiled code (torch) may keep the branch
    that it saw in the first steps.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._unclipped: Sequence[Any] = ()
        self._finish: Callable[[], None] | None = None

    def note(self, grads: Any = (), *_: Any, **__: Any) -> None:
        """Keep gradients that are about to be clipped."""
        self._unclipped = grads

    def begin(
        self, grads: Any = (), trainable_variables: Any = (), *_: Any, **__: Any
    ) -> None:
        """Call the observer, unless gradients and variables are no matching lists."""
        own_gradients, self._unclipped, self._finish = self._unclipped, (), None
        gradients = (
            own_gradients if _match(own_gradients, trainable_variables) else grads
        )
        if not _match(gradients, trainable_variables):
            return
        if pairs := _updated(gradients, trainable_variables):
            self._finish = self._observer(*map(list, zip(*pairs, strict=True)))

    def end(self) -> None:
        """Call the function that the observer returned."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


def _match(*lists: Any) -> bool:
    are_lists = all(isinstance(each, list | tuple) for each in lists)
    return are_lists and len({len(each) for each in lists}) == 1


def _observe_clipping(
    optimizer: Optimizer,
    begin: Callable[..., None],
    end: Callable[[], None],
    note: Callable[..., None],
) -> Callable[[], None]:
    # Private, for want of a public place: `apply` has scaled gradients of
    # micro-batches, `_backend_update_step` has clipped ones. Between them,
    # `_clip_gradients` gets them unscaled and accumulated. With accumulation JAX runs
    # this code in every step, and reverts the assignments of a step without an update.
    def clip(original: Any, *args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    def update(original: Any, *args: Any, **kwargs: Any) -> Any:
        begin(*args, **kwargs)
        result = original(*args, **kwargs)
        end()
        return result

    with ExitStack() as undo:
        # No issue known: Keras 3.15 has no hook before gradients are clipped, and none
        # after an update and before constraints.
        undo.callback(patch_method(optimizer, "_clip_gradients", clip))
        undo.callback(patch_method(optimizer, "_backend_update_step", update))
        return undo.pop_all().close


def _observe_apply(
    optimizer: Optimizer, begin: Callable[..., None], end: Callable[[], None]
) -> Callable[[], None]:
    # Each inner optimizer gets a part of the gradient, so it is read here.
    def apply(original: Any, gradients: Any, variables: Any) -> Any:
        scale = optimizer.loss_scale_factor
        true_gradients = [
            g if g is None or scale is None else g / scale for g in gradients
        ]
        begin(true_gradients, variables)
        result = original(gradients, variables)
        end()
        return result

    return around_apply(optimizer, apply)


def _updated(
    gradients: Sequence[Any], variables: Sequence[Any]
) -> list[tuple[Any, Any]]:
    return [
        (gradient, variable)
        for gradient, variable in zip(gradients, variables, strict=True)
        if gradient is not None
        and not getattr(variable, "overwrite_with_gradient", False)
    ]


def around_apply(
    optimizer: Optimizer,
    wrapper: Callable[[Callable[..., Any], list[Any], list[Any]], Any],
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

    # No issue known: Keras 3.15 has no hook for an update of a user's optimizer.
    return patch_method(optimizer, "apply", apply)


def scales_loss(optimizer: Optimizer) -> bool:
    """Return True if the optimizer scales the loss and skips nonfinite gradients."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


class GradientBackend(ABC):
    """The gradients of a framework's step, and the update that they make."""

    ops: Any
    uncompiled: Callable[[Callable[..., Any]], Callable[..., Any]]

    def observe_gradients(
        self, optimizer: Optimizer, observer: Observer
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo.

        The gradients are unscaled, unclipped and accumulated; `complete_gradients`
        sums them over replicas. The call happens inside the compiled
        step, so the observer sees tensors and may assign a `StepState`. What it
        returns, if it is not None, is called when the variables have been updated,
        before any constraint. An optimizer with its own way to update may never call
        the observer.
        """
        optimizer = innermost(optimizer)
        update = _Update(observer)
        # The observer counts steps in Python: its compiled form would keep one count.
        begin, end, note = map(self.uncompiled, (update.begin, update.end, update.note))
        if isinstance(optimizer, keras.optimizers.MultiOptimizer):
            return _observe_apply(optimizer, begin, end)
        return _observe_clipping(optimizer, begin, end, note)

    def check_optimizer(self, optimizer: Optimizer) -> None:  # noqa: B027 - any will do
        """Check that an optimizer can be observed.

        Raises:
            TypeError: if the optimizer cannot carry more variables through a step.
        """

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Return gradients summed over replicas, with the shapes of the variables."""
        return gradients

    def squared_norms(self, gradients: Sequence[Any]) -> Any:
        """Return the square of the L2 norm of each gradient, a float32 vector."""
        ops = self.ops
        return ops.stack([ops.sum(ops.square(self._float32(g))) for g in gradients])

    def gradient_statistics(self, gradients: Sequence[Any]) -> Any:
        """Return three figures per gradient, a float32 matrix.

        The columns are the largest absolute value, the number of nonzero entries and
        the number of nonfinite entries. The first is undefined if the last is not 0.
        """
        return self.ops.stack([self._statistics(self._float32(g)) for g in gradients])

    def _statistics(self, values: Any) -> Any:
        ops = self.ops
        masks = (ops.not_equal(values, 0.0), ops.logical_not(ops.isfinite(values)))
        # float32 stops counting at 16 million.
        counts = [ops.sum(ops.cast(mask, "int32")) for mask in masks]
        return ops.stack(
            [ops.max(ops.abs(values)), *(ops.cast(n, "float32") for n in counts)]
        )

    def gradient_bytes(self, gradient: Tensor) -> Any:
        """Return the size of a gradient in bytes.

        An int for a dense gradient. A float32 scalar tensor for a sparse one: the
        size of its values and indices.
        """
        dtype = np.dtype(keras.backend.standardize_dtype(gradient.dtype))
        return math.prod(gradient.shape) * dtype.itemsize

    def _float32(self, gradient: Tensor) -> Any:
        return self.ops.cast(gradient, "float32")

    def crossentropy(self, logits: Tensor, labels: Tensor) -> tuple[Any, Any, Any]:
        """Return cross-entropies of rows, their slopes by the logits, and best words.

        Nothing flows back through them.

        Args:
            logits: float32 (rows, words).
            labels: int32 (rows,), from 0 to `words - 1`.
        """
        largest = ops.max(logits, axis=-1, keepdims=True)
        powers = ops.exp(logits - largest)
        total = ops.sum(powers, axis=-1, keepdims=True)
        own = ops.take_along_axis(logits, labels[:, None], axis=-1)
        # What is below the first word would be counted from the last.
        own = ops.where(labels[:, None] < 0, float("nan"), own)
        losses = (ops.log(total) + largest - own)[:, 0]
        every = ops.arange(logits.shape[-1], dtype="int32")[None]
        is_label = ops.equal(every, labels[:, None])
        slopes = powers / total - ops.cast(is_label, "float32")
        return losses, slopes, ops.cast(ops.argmax(logits, axis=-1), "int32")

    def dense(self, gradient: Tensor) -> Any:
        """Return a gradient as a tensor of its variable's shape, also one of rows."""
        return gradient

    def in_turn(
        self, gradient: Tensor, variable: Variable
    ) -> AbstractContextManager[Callable[[Sequence[Any]], None]]:
        """Return a scope for the update of one variable, which waits for its turn.

        Where a graph would run all updates at once, what is made in the scope is made
        when the gradient is there and the update before is done. The scope gives what
        to call in it with the last tensors that are made.
        """
        return nullcontext(lambda _: None)
