"""Functions that TensorFlow computes a second time for their gradient."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kerasmem.backends.recompute import Function, Store, kept


def recomputed(
    function: Function, store: Store | None = None, *, compiled: bool = False
) -> Function:
    """Return `function` with a backward pass that keeps only the arguments.

    Args:
        function: a pure function of tensors.
        store: how the arguments are kept; None for as they are.
        compiled: whether XLA compiles the step.
    """
    late = _after_in_xla if compiled else _after

    @tf.custom_gradient
    def run(*tensors: Any) -> Any:
        # Past this the tape of the caller watches nothing, so that it keeps nothing.
        tensors = tuple(tf.stop_gradient(x) for x in tensors)
        parts, restored = kept(store, tensors)

        def gradient(*upstream: Any) -> list[Any]:
            parts_late, upstream = late(parts, upstream)
            return _gradients(function, restored(parts_late), upstream)

        outputs = tuple(function(*tensors))
        return outputs if store is None else _with(parts, outputs), gradient

    return lambda *tensors: tuple(run(*tensors))


def _with(parts: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the outputs, none of which is there before all that is kept.

    Else packing could be put off, and what is to be packed would stay for so long.
    """
    with tf.control_dependencies(list(parts)):
        return tuple(tf.identity(y) for y in outputs)


def _gradients(
    function: Function, arguments: Sequence[Any], upstream: Sequence[Any]
) -> list[Any]:
    sources = [x for x in arguments if x.dtype.is_floating]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        # Whatever in it hangs on no argument has to wait too.
        with tf.control_dependencies(list(arguments[:1])):
            outputs = function(*arguments)
    pairs = [
        (y, dy)
        for y, dy in zip(outputs, upstream, strict=True)
        if y.dtype.is_floating and dy is not None
    ]
    found = iter(
        tape.gradient(
            [y for y, _ in pairs], sources, output_gradients=[dy for _, dy in pairs]
        )
    )
    each = [_dense(next(found)) if x.dtype.is_floating else None for x in arguments]
    return _together(each)


def _dense(gradient: Any) -> Any:
    # A custom gradient takes the values of slices for the whole.
    if isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    return gradient


def _together(gradients: Sequence[Any]) -> list[Any]:
    """Return the gradients, none of which is there before all are.

    Else the next segment could begin, and fill the memory, while this one's tensors
    still wait for the gradients of its weights.
    """
    there = [dx for dx in gradients if dx is not None]
    with tf.control_dependencies(there):
        return [None if dx is None else tf.identity(dx) for dx in gradients]


def _after(parts: Sequence[Any], upstream: Sequence[Any]) -> tuple[Any, Any]:
    """Return what is kept, as it is once the gradients of the outputs are there."""
    with tf.control_dependencies([dy for dy in upstream if dy is not None]):
        return [tf.identity(x) for x in parts], upstream


def _after_in_xla(parts: Sequence[Any], upstream: Sequence[Any]) -> tuple[Any, Any]:
    """Return the same where control dependencies count for nothing."""
    first = next(dy for dy in upstream if dy is not None and dy.dtype.is_floating)
    # No algebra makes nothing of this zero, because of what is not a number.
    zero = tf.stop_gradient(tf.reshape(first, [-1])[0] * 0)
    zero = tf.where(tf.math.is_finite(zero), zero, tf.zeros_like(zero))
    return [
        x + tf.cast(zero, x.dtype) if x.dtype.is_floating else x for x in parts
    ], upstream
