"""Rematerialization in TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kerasmem.backends.recompute import (
    ArgumentStore,
    Function,
    Linear,
    Loop,
    RecomputeBackend,
    add_dependency,
    save_arguments,
)
from kerasmem.backends.tensorflow.gradient_registry import release_graphs
from kerasmem.types import Tensor, Tensors

_MOVES = (
    *("Cast", "ExpandDims", "Identity", "MirrorPad", "Pad", "PadV2"),
    *("Reshape", "SpaceToBatchND", "Squeeze", "Transpose"),
)
"""Operations that may be fused with the consumer of their output."""


class TensorFlowRecompute(RecomputeBackend):
    """Rematerialization in TensorFlow."""

    def recomputed(
        self,
        function: Function,
        store: ArgumentStore | None = None,
        *,
        compiled: bool = False,
    ) -> Function:
        """Return `function` with a backward pass that saves only the arguments."""
        late = _after_in_xla if compiled else _after

        @tf.custom_gradient
        def run(*tensors: Any) -> Any:
            # The caller's tape records nothing after this and therefore saves nothing.
            tensors = tuple(tf.stop_gradient(x) for x in tensors)
            parts, restore = save_arguments(store, tensors)

            def gradient(*upstream: Any) -> list[Any]:
                parts_late, upstream = late(parts, upstream)
                return _gradients(function, restore(parts_late), upstream)

            outputs = tuple(function(*tensors))
            return outputs if store is None else _with(parts, outputs), gradient

        return lambda *tensors: tuple(_released(run(*tensors)))

    def linear(
        self, forward: Linear, transposed: Linear, inputs: Tensors, held: Sequence[Any]
    ) -> Any:
        """Return `forward(inputs, *held)`, saving only `held` for the gradient."""
        if not isinstance(inputs, tf.Tensor):  # for example a sparse tensor
            return forward(inputs, *held)

        @tf.custom_gradient
        def run(inputs: Tensors, *held: Any) -> Any:
            def gradient(dy: Any) -> tuple[Any, ...]:
                dy = _dense(dy)
                # Both kinds of dependencies, because the use of XLA is unknown here.
                late, _ = _after_in_xla(_after(held, [dy])[0], [dy])
                return transposed(dy, *late), *(None for _ in held)

            # In a graph, the custom gradient already stops other gradients. If a
            # vectorized map drops the custom gradient, the others are still needed.
            if not tf.is_symbolic_tensor(inputs):
                inputs = tf.stop_gradient(inputs)
            return forward(inputs, *held), gradient

        return _released(run(inputs, *held))

    def in_loop(
        self,
        looped: Callable[[Loop], Any],
        whole: Callable[[], Any],
        inputs: Tensors,
        *,
        is_packed: bool,
    ) -> Any:
        """Return `looped(loop)` for packed codes in a graph for a CPU, else `whole()`.

        Without XLA, each operation on codes passes through main memory.
        """
        on_cpu = not tf.config.list_logical_devices("GPU")
        if is_packed and on_cpu and tf.is_symbolic_tensor(inputs):
            return looped(_LOOP)
        return whole()

    def after(self, value: Any, other: Any, taken: Callable[[Any], Any]) -> Any:
        """Return `taken(value)`, delayed in a graph until `other` is computed."""
        # Keras runs a grouped convolution of eager tensors as a separate graph.
        if not tf.is_symbolic_tensor(other):
            return taken(value)
        # oneDNN fuses a convolution with the padding before it, so inputs of the
        # convolution must not depend on the padding.
        while other.op.type in _MOVES:
            other = other.op.inputs[0]
        with tf.control_dependencies([other]):
            late_value = tf.identity(value)
        return taken(late_value)


def _unrolled(function: Callable[[Any], Any], count: int) -> Any:
    outputs: list[Any] = []
    for number in range(count):
        # One block after the other, so that each stays in the cache.
        with tf.control_dependencies(outputs[-1:]):
            outputs.append(function(number))
    return tf.stack(outputs)


_LOOP = Loop(_unrolled, block_bytes=1 << 21, most_blocks=16)


def _released(outputs: Tensors) -> Any:
    if tf.is_symbolic_tensor(tf.nest.flatten(outputs)[0]):
        release_graphs()
    return outputs


def _with(parts: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return outputs that depend on all saved parts.

    Otherwise packing could be delayed, and the unpacked tensors kept.
    """
    with tf.control_dependencies(list(parts)):
        return tuple(tf.identity(y) for y in outputs)


def _gradients(
    function: Function, arguments: Sequence[Any], upstream: Sequence[Any]
) -> list[Any]:
    sources = [x for x in arguments if x.dtype.is_floating]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        # Operations without an argument as input must be delayed too.
        with tf.control_dependencies(list(arguments[:1])):
            outputs = function(*arguments)
    pairs = [
        (y, dy)
        for y, dy in zip(outputs, upstream, strict=True)
        if y.dtype.is_floating and dy is not None
    ]
    dx = iter(
        tape.gradient(
            [y for y, _ in pairs], sources, output_gradients=[dy for _, dy in pairs]
        )
    )
    each = [_dense(next(dx)) if x.dtype.is_floating else None for x in arguments]
    return _together(each)


def _dense(gradient: Tensor) -> Any:
    # A custom gradient would treat the values of slices as the whole gradient.
    if isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    return gradient


def _together(gradients: Sequence[Any]) -> list[Any]:
    """Return gradients that become available together.

    Otherwise the next segment could start while tensors of this one are still in memory
    for the gradients of its weights.
    """
    there = [dx for dx in gradients if dx is not None]
    with tf.control_dependencies(there):
        return [None if dx is None else tf.identity(dx) for dx in gradients]


def _after(parts: Sequence[Any], upstream: Sequence[Any]) -> tuple[Any, Any]:
    with tf.control_dependencies([dy for dy in upstream if dy is not None]):
        return [tf.identity(x) for x in parts], upstream


def _after_in_xla(parts: Sequence[Any], upstream: Sequence[Any]) -> tuple[Any, Any]:
    first = next(dy for dy in upstream if dy is not None and dy.dtype.is_floating)
    return add_dependency(parts, first), upstream
