"""TensorFlow."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from kerasmem.backends import gradients as hooks
from kerasmem.backends.protocol import Backend, StepState
from kerasmem.backends.state import VariableState, hidden_variable
from kerasmem.records import DeviceReading


class TensorFlowBackend:
    """What kerasmem asks of TensorFlow."""

    name = "tensorflow"

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per GPU, or of the CPU allocator where there is none."""
        return tuple(_reading(device) for device in _counted_devices())

    def reset_device_peak(self) -> bool:
        """Set every peak to what is in use now; False if no device is counted."""
        for device in _counted_devices():
            tf.config.experimental.reset_memory_stats(device)
        return bool(_counted_devices())

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        return (
            "TensorFlow's CPU allocator counts nothing in this process, so there is "
            "no device series; set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is "
            "imported to have it count."
        )

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


def _counted_devices() -> tuple[str, ...]:
    gpus = tf.config.list_logical_devices("GPU")
    if gpus:
        return tuple(gpu.name.removeprefix("/device:") for gpu in gpus)
    try:
        tf.config.experimental.get_memory_info("CPU:0")
    except ValueError:  # TensorFlow's way to say that this allocator does not count
        return ()
    return ("CPU:0",)


def _reading(device: str) -> DeviceReading:
    figures = tf.config.experimental.get_memory_info(device)
    return DeviceReading(
        name=device,
        current_bytes=figures["current"],
        peak_bytes=figures["peak"],
        peak_was_reset=True,
        complete=not device.startswith("CPU") or _counts_small_requests(),
    )


@functools.cache
def _counts_small_requests() -> bool:
    # Tried out, because the environment variable that switches the CPU allocator
    # counts only if it was set before TensorFlow was imported.
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    with tf.device("CPU:0"):
        small = tf.fill([100], 1.0)
    after = tf.config.experimental.get_memory_info("CPU:0")["current"]
    return after - before >= small.dtype.size * 100


ADAPTER: Backend = TensorFlowBackend()
