"""Gradients of a TensorFlow training step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from kerasmem.backends.gradients import GradientBackend, Upstream
from kerasmem.backends.recompute import Function
from kerasmem.types import Tensor, Variable

Gradient = tf.Tensor | tf.IndexedSlices


def _sum_rows(rows: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    # Sorting instead of tf.unique, which has no XLA kernel. Equal neighbors share one
    # segment, and unused segments stay zero.
    indices = tf.reshape(indices, [-1])
    order = tf.argsort(indices, stable=True)
    sorted_indices = tf.gather(indices, order)
    starts = tf.cast(sorted_indices[1:] != sorted_indices[:-1], tf.int32)
    segments = tf.concat([[0], tf.cumsum(starts)], axis=0)
    return tf.math.unsorted_segment_sum(
        tf.gather(rows, order), segments, tf.size(indices)
    )


_COLLECTION = "kerasmem_last_update_on_{}"


class TensorFlowGradients(GradientBackend):
    """Gradients of a TensorFlow training step, dense or sparse."""

    def complete_gradients(
        self, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Sequence[Any]:
        """Return gradients summed over replicas, with the shapes of the variables."""
        return _shaped(_all_reduced(gradients), variables)

    def _is_small(self, gradient: Gradient) -> bool:
        # The number of rows of a sparse gradient is unknown in a trace.
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        return not is_sparse and super()._is_small(gradient)

    def _float32(self, gradient: Gradient) -> tf.Tensor:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = _sum_rows(gradient.values, gradient.indices)
        return tf.cast(gradient, tf.float32)

    def crossentropy(
        self, logits: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return per-row cross-entropies, gradients by the logits, and argmax.

        A label out of range is an error on a CPU, and NaN elsewhere.
        """
        if is_op_determinism_enabled():  # the operation does not support it on a GPU
            return super().crossentropy(logits, labels)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        # The logits are not needed afterwards, so the gradients reuse their memory.
        with tf.control_dependencies([best]):
            both = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
                features=logits, labels=labels
            )
        return both.loss, both.backprop, best

    def dense(self, gradient: Tensor) -> tf.Tensor:
        """Return a gradient as a dense tensor, with duplicate rows summed."""
        return tf.convert_to_tensor(gradient)

    def _gradients_of(
        self, function: Function, tensors: Sequence[Any], upstream: Upstream
    ) -> list[Any]:
        tensors = [tf.convert_to_tensor(x) for x in tensors]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(tensors)
            outputs = function(*tensors)
        pairs = zip(outputs, upstream(outputs), strict=True)
        outputs, own = zip(*(p for p in pairs if p[0].dtype.is_floating), strict=True)
        zeros = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(outputs, tensors, list(own), zeros)
        return [self.dense(each) for each in gradients]

    @contextmanager
    def in_turn(
        self, gradient: Tensor, variable: Variable
    ) -> Iterator[Callable[[Sequence[tf.Tensor]], None]]:
        """Return a context whose operations run after `gradient` and the last one.

        Otherwise a graph would dequantize all codes at the start of a step, and keep
        them through the whole backward pass. Only updates on the same device are
        delayed.
        """
        if tf.executing_eagerly():
            yield lambda _: None
            return
        if isinstance(variable, keras.Variable):
            variable = variable.value
        graph = tf.compat.v1.get_default_graph()
        # A collection has the lifetime of its graph.
        last = graph.get_collection_ref(_COLLECTION.format(variable.device))
        own = [operation for operation in last if operation.graph is graph]

        def finish(results: Sequence[tf.Tensor]) -> None:
            with tf.control_dependencies(results):
                last[:] = [tf.no_op()]

        with tf.control_dependencies([gradient, *own]):
            yield finish


def _shaped(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return gradients with the static shapes of their variables.

    A slice of a table by the length of a sequence has a gradient of unknown shape.
    """
    return [
        gradient
        if isinstance(gradient, tf.IndexedSlices) or gradient.shape.is_fully_defined()
        else tf.ensure_shape(gradient, variable.shape)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def _all_reduced(gradients: Sequence[Any]) -> Sequence[Any]:
    # Each replica has a part of the gradient, which Keras sums only after clipping. The
    # unclipped sum needs one more reduction per step.
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return gradients
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
