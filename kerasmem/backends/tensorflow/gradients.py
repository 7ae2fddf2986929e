"""The gradients of a TensorFlow step: few operations in a graph, wide loops in XLA."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from kerasmem.backends.gradients import (
    FoldingMeter,
    GradientBackend,
    GradientMeter,
)

Gradient = tf.Tensor | tf.IndexedSlices

_BYTE_SUM = 64  # ones that an int8 can add up


class GraphMeter(GradientMeter):
    """Measures with one operation a pass, whose loop uses all cores.

    Of a small network's step the number of operations is what costs, so short
    gradients are measured together.
    """

    def squared_norms(self, gradients: Sequence[Gradient]) -> tf.Tensor:
        """Return the square of the L2 norm of each, a float32 vector."""
        return packed([_values(gradient) for gradient in gradients])(_square)

    def statistics(
        self, gradients: Sequence[Gradient], squared_norms: tf.Tensor
    ) -> tf.Tensor:
        """Return a row per gradient: largest, numbers of nonzero and nonfinite.

        No figure waits for another one, not even to see whether it is needed: a
        gradient that waits stays in memory.
        """
        each = packed([_values(gradient) for gradient in gradients])
        # Not of the absolute values: those would be one more gradient in memory.
        largest = tf.maximum(each(tf.reduce_max), -each(tf.reduce_min))
        counts = each(_nonzero), each(_nonfinite)
        return tf.stack([largest, *counts], axis=1)

    def spaced_rows(self, matrix: tf.Tensor, count: int, step: int) -> tf.Tensor:
        """Return the first of every `step` rows of a matrix, `count` of them."""
        # By their numbers: a slice with a step takes several times as long.
        return tf.gather(matrix, np.arange(count) * step)

    def size_bytes(self, gradient: Gradient) -> int | tf.Tensor:
        """Return the bytes that hold the gradient, a tensor if it is sparse."""
        return _size_bytes(gradient)


class CompiledMeter(FoldingMeter):
    """Measures where XLA compiles the step."""

    def size_bytes(self, gradient: Gradient) -> int | tf.Tensor:
        """Return the bytes that hold the gradient, a tensor if it is sparse."""
        return _size_bytes(gradient)

    def _float32(self, gradient: Gradient) -> tf.Tensor:
        return _values(gradient)


def _size_bytes(gradient: Gradient) -> int | tf.Tensor:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient.shape.num_elements() * gradient.dtype.size
    parts = (gradient.values, gradient.indices)
    return tf.add_n([tf.cast(tf.size(p) * p.dtype.size, tf.float32) for p in parts])


def _values(gradient: Gradient) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        gradient = _sum_rows(gradient.values, gradient.indices)
    return tf.cast(gradient, tf.float32)


def _sum_rows(rows: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    # By sorting, not by tf.unique, which has no XLA kernel: neighbors of one index
    # fall into one segment, and the segments left over stay zero.
    indices = tf.reshape(indices, [-1])
    order = tf.argsort(indices, stable=True)
    ordered = tf.gather(indices, order)
    starts = tf.cast(ordered[1:] != ordered[:-1], tf.int32)
    segments = tf.concat([[0], tf.cumsum(starts)], axis=0)
    return tf.math.unsorted_segment_sum(
        tf.gather(rows, order), segments, tf.size(indices)
    )


def _square(values: tf.Tensor, axis: int | None) -> tf.Tensor:
    if axis is None:
        return 2.0 * tf.nn.l2_loss(values)
    return tf.reduce_sum(tf.square(values), axis)


def _nonzero(values: tf.Tensor, axis: int | None) -> tf.Tensor:
    return _count(tf.not_equal(values, 0.0), axis)


def _nonfinite(values: tf.Tensor, axis: int | None) -> tf.Tensor:
    return _count(tf.logical_not(tf.math.is_finite(values)), axis)


def _count(mask: tf.Tensor, axis: int | None) -> tf.Tensor:
    # In whole numbers, because float32 stops counting at 16 million; and as long as
    # they are small in single bytes, or they would be one more gradient in memory.
    size = mask.shape.num_elements()
    if axis is not None or size is None:
        return tf.cast(tf.reduce_sum(tf.cast(mask, tf.int32), axis), tf.float32)
    ones = tf.reshape(tf.cast(mask, tf.int8), [-1])
    whole = size // _BYTE_SUM * _BYTE_SUM
    sums = [tf.reduce_sum(tf.reshape(ones[:whole], [-1, _BYTE_SUM]), axis=1)]
    if whole < size:
        sums.append(ones[whole:])
    return tf.cast(tf.reduce_sum(tf.cast(tf.concat(sums, 0), tf.int32)), tf.float32)


SHORT = 1024
"""Most entries of a tensor that becomes a row; a row is filled up with zeros."""

Figure = Callable[[tf.Tensor, int | None], tf.Tensor]
"""Called with a tensor and None, or with a matrix and the axis of its rows, 1."""


def packed(tensors: Sequence[tf.Tensor]) -> Callable[[Figure], tf.Tensor]:
    """Return a function that returns a figure of each tensor, a vector of float32.

    The short ones are measured as the rows of one matrix, filled up with zeros, which
    add nothing to a figure. The only one that is short stays as it is.
    """
    lengths = [tensor.shape.num_elements() for tensor in tensors]
    short = [i for i, n in enumerate(lengths) if n is not None and n <= SHORT]
    if len(short) == 1:
        short = []
    long = sorted(set(range(len(tensors))) - set(short))
    matrix = _matrix([tensors[i] for i in short]) if short else None
    order = np.argsort([*long, *short])

    def each(figure: Figure) -> tf.Tensor:
        figures = [figure(tensors[i], None) for i in long]
        if matrix is None:
            return tf.stack(figures)
        rows = figure(matrix, 1)
        if figures:
            rows = tf.concat([tf.stack(figures), rows], axis=0)
        return tf.gather(rows, order)

    return each


def _matrix(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    lengths = [tensor.shape.num_elements() or 0 for tensor in flat]
    zero = sum(lengths)
    places = np.full((len(flat), max(lengths)), zero, "int32")
    for row, (length, end) in enumerate(zip(lengths, np.cumsum(lengths), strict=True)):
        places[row, :length] = np.arange(end - length, end)
    return tf.gather(tf.concat([*flat, [0.0]], axis=0), places)


_COLLECTION = "kerasmem_last_update_on_{}"

_DRAWING = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
}


class TensorFlowGradients(GradientBackend):
    """The gradients of a TensorFlow step, dense tensors or slices."""

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Return gradients summed over replicas, with the shapes of the variables."""
        return _shaped(_all_reduced(gradients), variables)

    def gradient_meter(self, *, compiled: bool) -> GradientMeter:
        """Return what measures gradients in a step, which XLA compiles or does not."""
        return CompiledMeter() if compiled else GraphMeter()

    def branches_cost(self, *, compiled: bool) -> bool:
        """Return True for XLA, which keeps in memory what a branch reads."""
        return compiled

    def draws_in_trace(self) -> bool:
        """Return whether the graph being traced draws as `tf.random.normal` does.

        What has its seed in a tensor or variable, as in `keras.random`, does not.
        """
        definition = tf.compat.v1.get_default_graph().as_graph_def()
        nodes = [definition.node, *(f.node_def for f in definition.library.function)]
        return any(node.op in _DRAWING for among in nodes for node in among)

    def crossentropy(
        self, logits: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return cross-entropies of rows, their slopes by the logits, and best words.

        A label out of range is an error on a CPU, and NaN elsewhere.
        """
        if is_op_determinism_enabled():  # the operation refuses it on a GPU
            return super().crossentropy(logits, labels)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        # By then nobody else needs the logits, and the slopes take their place.
        with tf.control_dependencies([best]):
            both = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
                features=logits, labels=labels
            )
        return both.loss, both.backprop, best

    def dense(self, gradient: Any) -> tf.Tensor:
        """Return a gradient as a tensor, the rows of a sparse one summed up."""
        return tf.convert_to_tensor(gradient)

    @contextmanager
    def in_turn(
        self, gradient: Any, variable: Any
    ) -> Iterator[Callable[[Sequence[tf.Tensor]], None]]:
        """Return a scope whose operations wait for `gradient` and the scope before.

        A graph runs whatever has its inputs. Without this it would make floats of every
        code when a step begins, and hold them through the whole backward pass. Only
        updates on the same device wait.
        """
        if tf.executing_eagerly():
            yield lambda _: None
            return
        if isinstance(variable, keras.Variable):
            variable = variable.value
        graph = tf.compat.v1.get_default_graph()
        # A collection lives and dies with its graph.
        last = graph.get_collection_ref(_COLLECTION.format(variable.device))
        own = [operation for operation in last if operation.graph is graph]

        def finish(results: Sequence[tf.Tensor]) -> None:
            with tf.control_dependencies(results):
                last[:] = [tf.no_op()]

        with tf.control_dependencies([gradient, *own]):
            yield finish


def _shaped(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return gradients with the shapes of their variables, which a trace may not know.

    A slice of a table by the length of a sequence has a gradient of unknown shape.
    """
    return [
        gradient
        if isinstance(gradient, tf.IndexedSlices) or gradient.shape.is_fully_defined()
        else tf.ensure_shape(gradient, variable.shape)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def _all_reduced(gradients: Sequence[Any]) -> Sequence[Any]:
    # Under a strategy each replica has its own part, which Keras sums up only after
    # clipping. One more reduction a step is the price of the unclipped sum.
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return gradients
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
