"""TensorFlow."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from kerasmem.backends import _tensorflow_memory as memory
from kerasmem.backends import gradients as hooks
from kerasmem.backends._tensorflow_profile import TensorFlowProfiler
from kerasmem.backends.profile import Followed, MemoryProfiler
from kerasmem.backends.protocol import Backend, StepState
from kerasmem.backends.state import VariableState, hidden_variable
from kerasmem.backends.tracing import count_traces
from kerasmem.records import DeviceReading


class TensorFlowBackend:
    """What kerasmem asks of TensorFlow."""

    name = "tensorflow"

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per GPU, or of the CPU allocator where there is none."""
        return memory.device_memory()

    def reset_device_peak(self) -> bool:
        """Set every peak to what is in use now; False if no device is counted."""
        return memory.reset_device_peak()

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        return (
            "TensorFlow's CPU allocator counts nothing in this process, so there is "
            "no device series; set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is "
            "imported to have it count."
        )

    def input_bytes(self) -> int | None:
        """Return what the CPU allocator has in use while a GPU trains."""
        return memory.input_bytes()

    def cuda_ordinals(self) -> dict[str, int]:
        """Return CUDA's number of the card below each logical GPU."""
        return memory.cuda_ordinals()

    def processes(self, model: Any) -> tuple[int, int]:
        """Return the index of this process and the number that train together."""
        return memory.processes(model)

    def traces(self, model: Any) -> int | None:
        """Return how many traces the training step has, None before the first."""
        return count_traces(model, "experimental_get_tracing_count")

    def memory_profiler(self, followed: Followed) -> MemoryProfiler:
        """Return what records every allocation and free."""
        return TensorFlowProfiler(followed, memory.device_memory)

    def step_state(
        self,
        optimizer: Any,  # noqa: ARG002 - the other backends need it
        value: np.ndarray,
        name: str,
    ) -> StepState:
        """Return a variable outside of the model, also while a step is traced."""
        # init_scope lifts the variable out of the graph that is being traced. Under
        # a distribution strategy Keras calls fit inside of its scope.
        with tf.init_scope():
            return VariableState(hidden_variable(value, name), lambda v: v.numpy())

    def observe_gradients(
        self, optimizer: Any, observer: Callable[[Sequence[Any], Sequence[Any]], None]
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo."""
        return hooks.observe_updates(
            optimizer,
            lambda gradients, variables: observer(_all_reduced(gradients), variables),
        )

    def observe_loss_scaling(
        self, optimizer: Any, observer: Callable[[Any], None]
    ) -> Callable[[], None]:
        """Call `observer(finite)` in every step of a loss scaling optimizer."""
        if not hooks.scales_loss(optimizer):
            return hooks.nothing_to_undo
        return hooks.observe_finiteness(optimizer, observer)

    def global_norm(self, gradients: Sequence[Any]) -> tf.Tensor:
        """Return the L2 norm of all gradients together, a float32 scalar."""
        halves = [
            tf.nn.l2_loss(tf.cast(self.summed(gradient), tf.float32))
            for gradient in gradients
        ]
        return tf.sqrt(2.0 * tf.add_n(halves))

    def summed(self, gradient: Any) -> tf.Tensor:
        """Return a gradient as one tensor, the rows of one index summed."""
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        return _sum_rows(gradient.values, gradient.indices)

    def inference(self) -> AbstractContextManager[Any]:
        """Return a scope that does nothing: a tape records only where one is open."""
        return nullcontext()


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


def _all_reduced(gradients: Sequence[Any]) -> Sequence[Any]:
    # Under a strategy each replica has its own part, which Keras sums up only after
    # clipping. One more reduction a step is the price of the unclipped sum.
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return gradients
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))


ADAPTER: Backend = TensorFlowBackend()
