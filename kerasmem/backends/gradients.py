"""Gradients of an update: hooks into the optimizer, and their statistics."""

import functools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from kerasmem.backends.patching import patch_method
from kerasmem.backends.recompute import Function
from kerasmem.types import Optimizer, Tensor, Variable

Observer = Callable[[Sequence[Any], Sequence[Any]], Callable[[], None] | None]
"""Called with gradients and variables. Its result is called after the update."""


Upstream = Callable[[Sequence[Any]], Sequence[Any]]
"""Returns the gradients of the outputs of a function."""


def innermost(optimizer: Optimizer) -> Any:
    """Return the optimizer that updates the variables, without loss scaling."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


class _Update(threading.local):
    """One call of the observer. Thread-local, because replicas run in threads.

    No method returns a value to branch on, because torch's compiled code may keep the
    branch of the first steps.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._unclipped: Sequence[Any] = ()
        self._finish: Callable[[], None] | None = None

    def note(self, grads: Any = (), *_: Any, **__: Any) -> None:
        """Store gradients before clipping."""
        self._unclipped = grads

    def begin(
        self, grads: Any = (), trainable_variables: Any = (), *_: Any, **__: Any
    ) -> None:
        """Call the observer, unless gradients and variables do not match."""
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
    # Private methods, because there are no public ones. `apply` gets scaled gradients
    # of micro-batches and `_backend_update_step` clipped ones. `_clip_gradients`, in
    # between, gets unscaled, accumulated gradients. With accumulation, JAX runs this
    # code in every step, and reverts the assignments of a step without an update.
    def clip(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        note(*args, **kwargs)
        return original(*args, **kwargs)

    def update(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begin(*args, **kwargs)
        result = original(*args, **kwargs)
        end()
        return result

    with ExitStack() as undo:
        # No issue known: Keras 3.15 has no hook before gradient clipping, and none
        # between an update and the constraints.
        undo.callback(patch_method(optimizer, "_clip_gradients", clip))
        undo.callback(patch_method(optimizer, "_backend_update_step", update))
        return undo.pop_all().close


def _observe_apply(
    optimizer: Optimizer, begin: Callable[..., None], end: Callable[[], None]
) -> Callable[[], None]:
    # Each inner optimizer gets only part of the gradients.
    def apply(original: Callable[..., Any], gradients: Any, variables: Any) -> Any:
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
    """Call `wrapper(original, gradients, variables)` instead of `apply`.

    Returns the undo function. On JAX, `optimizer` must be the one that updates the
    variables.
    """

    def apply(
        original: Callable[..., Any], grads: Any, trainable_variables: Any = None
    ) -> Any:
        # Private: the variables that the optimizer was built for, the default of
        # `apply`.
        variables = trainable_variables or optimizer._trainable_variables
        return wrapper(original, list(grads), list(variables))

    # No issue known: Keras 3.15 has no hook for an update of a user's optimizer.
    return patch_method(optimizer, "apply", apply)


def scales_loss(optimizer: Optimizer) -> bool:
    """Return whether the optimizer scales the loss and skips nonfinite gradients."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


_BLOCK = 64
MOST_ENTRIES = 16_384
"""Number of entries up to which a gradient is small."""


class Segments:
    """Reduces consecutive parts of a vector with a constant number of operations.

    Parts are cut into blocks of equal length. Blocks are reduced first, then the blocks
    of each part.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        counts = -(-np.array(sizes) // _BLOCK)
        first = np.cumsum(counts) - counts
        number = np.arange(counts.sum()) - np.repeat(first, counts)
        ends = np.cumsum(sizes)
        self._start = np.repeat(ends - sizes, counts) + number * _BLOCK
        self._end = np.repeat(ends, counts)
        place = np.arange(max(1, counts.max()))
        has_block = place < counts[:, None]
        self._blocks_of = np.where(has_block, first[:, None] + place, counts.sum())

    @classmethod
    @functools.cache
    def of(cls, sizes: tuple[int, ...]) -> "Segments":
        """Return the segments of a vector with parts of these sizes."""
        return cls(sizes)

    def blocks(self, vector: Any) -> Any:
        """Return a matrix with a block per row, padded with zeros."""
        start, end = (
            ops.convert_to_tensor(each[:, None], "int32")
            for each in (self._start, self._end)
        )
        places = start + ops.arange(_BLOCK, dtype="int32")
        is_inside = places < end
        places = ops.where(is_inside, places, 0)
        return ops.where(is_inside, ops.take(vector, places, axis=0), 0.0)

    def rows(self, figures: Any) -> Any:
        """Return a matrix with the figures of a part's blocks per row, then zeros."""
        with_zero = ops.concatenate([figures, ops.zeros_like(figures[:1])])
        places = ops.convert_to_tensor(self._blocks_of, "int32")
        return ops.take(with_zero, places, axis=0)


@dataclass(frozen=True)
class JoinedGradients:
    """Gradients, the small ones joined to one vector.

    XLA compiles a kernel for each reduction, and TensorFlow a switch for each input of
    a branch. Joined gradients share them.

    Args:
        vector: The entries of the small gradients, float32. None without such ones.
        sizes: Number of entries of each small gradient.
        large: The other gradients.
        order: Place of each gradient among the small and then the large ones.
    """

    vector: Any
    sizes: list[int]
    large: list[Any]
    order: list[int]


class GradientBackend(ABC):
    """Gradients of the training step of a framework."""

    ops: Any
    uncompiled: Callable[[Callable[..., Any]], Callable[..., Any]]

    def observe_gradients(
        self, optimizer: Optimizer, observer: Observer
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update, and return the undo.

        The gradients are unscaled, unclipped and accumulated; `complete_gradients`
        reduces them over replicas. The call happens inside the compiled step, so the
        observer gets tensors and may assign a `StepState`. Its result, if not None, is
        called after the update and before constraints. Optimizers with custom updates
        may never call the observer.
        """
        optimizer = innermost(optimizer)
        update = _Update(observer)
        # The observer counts steps in Python. Compiled code would freeze the count.
        begin, end, note = map(self.uncompiled, (update.begin, update.end, update.note))
        if isinstance(optimizer, keras.optimizers.MultiOptimizer):
            return _observe_apply(optimizer, begin, end)
        return _observe_clipping(optimizer, begin, end, note)

    def check_optimizer(self, optimizer: Optimizer) -> None:  # noqa: B027 - no check
        """Raise `TypeError` if the optimizer cannot be observed."""

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Return gradients summed over replicas, with the shapes of the variables."""
        return gradients

    def joined(self, gradients: Sequence[Any]) -> JoinedGradients:
        """Join the small gradients to one float32 vector."""
        places = range(len(gradients))
        small = [place for place in places if self._is_small(gradients[place])]
        if len(small) < 2:
            return JoinedGradients(None, [], list(gradients), [*places])
        large = [place for place in places if place not in set(small)]
        values = [self._float32(gradients[place]) for place in small]
        return JoinedGradients(
            self.ops.concatenate([self.ops.reshape(value, (-1,)) for value in values]),
            [math.prod(value.shape) for value in values],
            [gradients[place] for place in large],
            np.argsort(small + large).tolist(),
        )

    def squared_norms(self, gradients: JoinedGradients) -> Any:
        """Return the squared L2 norm of each gradient as a float32 vector."""
        ops = self.ops
        return self._by_size(
            gradients,
            self.segment_squares,
            lambda gradient: ops.sum(ops.square(gradient)),
        )

    def segment_squares(self, vector: Any, sizes: Sequence[int]) -> Any:
        """Return the squared L2 norm of each consecutive part of a float32 vector."""
        segments = Segments.of(tuple(sizes))
        sums = ops.sum(ops.square(segments.blocks(vector)), axis=1)
        return ops.sum(segments.rows(sums), axis=1)

    def gradient_statistics(self, gradients: JoinedGradients) -> Any:
        """Return a float32 matrix with three values per gradient.

        The columns are the largest absolute value, the number of nonzero entries and
        the number of nonfinite entries. The first is undefined if the last is not 0.
        """
        return self._by_size(gradients, self._joint_statistics, self._statistics)

    def _by_size(
        self,
        gradients: JoinedGradients,
        joint: Callable[[Any, Sequence[int]], Any],
        single: Callable[[Any], Any],
    ) -> Any:
        """Return a row per gradient, of `joint` for joined ones, else of `single`."""
        rows = [joint(gradients.vector, gradients.sizes)] if gradients.sizes else []
        if gradients.large:
            values = map(self._float32, gradients.large)
            rows.append(self.ops.stack([single(value) for value in values]))
        if len(rows) == 1:
            return rows[0]
        return self.ops.take(self.ops.concatenate(rows), gradients.order, axis=0)

    def _is_small(self, gradient: Any) -> bool:
        return math.prod(gradient.shape) <= MOST_ENTRIES

    def _statistics(self, values: Any) -> Any:
        figures = self._reduced(self._figures(values))
        return self.ops.stack([self.ops.cast(each, "float32") for each in figures])

    def _joint_statistics(self, vector: Any, sizes: Sequence[int]) -> Any:
        segments = Segments.of(tuple(sizes))
        figures = self._reduced(self._figures(segments.blocks(vector)), axis=1)
        figures = self._reduced([segments.rows(each) for each in figures], axis=1)
        return ops.stack([ops.cast(each, "float32") for each in figures], axis=1)

    def _figures(self, values: Any) -> list[Any]:
        ops = self.ops
        masks = (ops.not_equal(values, 0.0), ops.logical_not(ops.isfinite(values)))
        # float32 cannot count beyond 16 million.
        return [ops.abs(values), *(ops.cast(mask, "int32") for mask in masks)]

    def _reduced(self, figures: Sequence[Any], **axis: int) -> list[Any]:
        """Return the maximum of the first array and the sums of the others."""
        largest, *counts = figures
        sums = [self.ops.sum(count, **axis) for count in counts]
        return [self.ops.max(largest, **axis), *sums]

    def _float32(self, gradient: Tensor) -> Any:
        return self.ops.cast(gradient, "float32")

    def crossentropy(self, logits: Tensor, labels: Tensor) -> tuple[Any, Any, Any]:
        """Return per-row cross-entropies, gradients by the logits, and argmax.

        The results have no gradient. `logits` has the shape `(rows, words)` and the
        dtype float32. `labels` has the shape `(rows,)` and the dtype int32.
        """
        largest = ops.max(logits, axis=-1, keepdims=True)
        powers = ops.exp(logits - largest)
        total = ops.sum(powers, axis=-1, keepdims=True)
        own = ops.take_along_axis(logits, labels[:, None], axis=-1)
        # A negative label would count from the last word.
        own = ops.where(labels[:, None] < 0, float("nan"), own)
        losses = (ops.log(total) + largest - own)[:, 0]
        every = ops.arange(logits.shape[-1], dtype="int32")[None]
        is_label = ops.equal(every, labels[:, None])
        slopes = powers / total - ops.cast(is_label, "float32")
        return losses, slopes, ops.cast(ops.argmax(logits, axis=-1), "int32")

    def dense(self, gradient: Tensor) -> Any:
        """Return a gradient as a dense tensor with the shape of its variable."""
        return gradient

    def gradients_of(
        self,
        function: Callable[[], Any],
        variables: Sequence[Any],
        upstream: Upstream,
    ) -> list[Any]:
        """Return the gradients of variables, trainable or not.

        `upstream` is called with the flattened outputs of `function`, and returns their
        gradients. A variable without influence has a gradient of zeros.
        """

        def run(*tensors: Any) -> tuple[Any, ...]:
            pairs = list(zip(variables, tensors, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                return tuple(keras.tree.flatten(function()))

        return self._gradients_of(run, [each.value for each in variables], upstream)

    @abstractmethod
    def _gradients_of(
        self, function: Function, tensors: Sequence[Any], upstream: Upstream
    ) -> list[Any]:
        """Return the gradients of the arguments of `function`."""

    def in_turn(
        self, gradient: Tensor, variable: Variable
    ) -> AbstractContextManager[Callable[[Sequence[Any]], None]]:
        """Return a context that delays the update of one variable.

        A graph would run all updates at once. Operations in this context run after the
        gradient is computed and the previous update is done. The context returns a
        function to call with the last tensors.
        """
        return nullcontext(lambda _: None)
