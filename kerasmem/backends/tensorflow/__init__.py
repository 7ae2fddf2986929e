"""TensorFlow."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from kerasmem.backends import gradients as hooks
from kerasmem.backends.profile import Followed, MemoryProfiler
from kerasmem.backends.protocol import Backend, GradientMeter, StepState
from kerasmem.backends.steps import VariableState, count_traces, hidden_variable
from kerasmem.backends.tensorflow import device as memory
from kerasmem.backends.tensorflow import recompute
from kerasmem.backends.tensorflow.device import TensorFlowSettings
from kerasmem.backends.tensorflow.gradients import (
    CompiledMeter,
    GraphMeter,
    draws,
    in_turn,
)
from kerasmem.backends.tensorflow.lazy import TensorFlowLazyValues
from kerasmem.backends.tensorflow.profile import TensorFlowProfiler
from kerasmem.backends.tensorflow.steps import (
    TensorFlowEvaluation,
    TensorFlowOptions,
    TensorFlowTraining,
)

_MOVES = (
    *("Cast", "ExpandDims", "Identity", "MirrorPad", "Pad", "PadV2"),
    *("Reshape", "SpaceToBatchND", "Squeeze", "Transpose"),
)
"""Operations that may become one with the operation that takes what they give."""


class TensorFlowBackend:
    """What kerasmem asks of TensorFlow."""

    name = "tensorflow"
    runs_eagerly = False
    pools_memory = True
    limits_itself = True
    copies_arrays = True
    adds_along_any_axis = True
    recovers_logits = True
    hands_state_on = False
    converts_models = True
    fuses_fake_quantization = True
    ops: Any = keras.ops
    lazy_values = TensorFlowLazyValues
    step_options = TensorFlowOptions
    settings = TensorFlowSettings
    training = TensorFlowTraining
    evaluation = TensorFlowEvaluation
    observe_loss_scaling = staticmethod(hooks.observe_finiteness)
    inference = nullcontext
    device_memory = staticmethod(memory.device_memory)
    reset_device_peak = staticmethod(memory.reset_device_peak)
    observe_peak_resets = staticmethod(memory.observe_peak_resets)
    input_bytes = staticmethod(memory.input_bytes)
    refusals = staticmethod(memory.refusals)
    cpu_limit_bytes = staticmethod(memory.cpu_limit_bytes)
    cuda_ordinals = staticmethod(memory.cuda_ordinals)
    processes = staticmethod(memory.processes)
    recomputed = staticmethod(recompute.recomputed)
    in_turn = staticmethod(in_turn)

    def looked_at(self, tensor: Any) -> np.ndarray:
        """Return a tensor's value, not to be written to: no copy if it is on a CPU."""
        return np.asarray(tf.convert_to_tensor(tensor))  # `numpy` makes a copy

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        return (
            "TensorFlow's CPU allocator counts nothing in this process, so there is "
            "no device series; set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is "
            "imported to have it count."
        )

    def compiles_with_xla(self, model: Any) -> bool:
        """Return whether XLA compiles the training step of a compiled model."""
        return model.jit_compile is True

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return none: a step reads the variables themselves."""
        return []

    def direct_writes(self, model: Any) -> None:
        """Return None: `assign` sets a variable at any time."""
        return

    def traces(self, model: Any) -> int | None:
        """Return how many traces the training step has, None before the first."""
        return count_traces(model, "experimental_get_tracing_count")

    def memory_profiler(self, followed: Followed) -> MemoryProfiler:
        """Return what records every allocation and free."""
        return TensorFlowProfiler(followed, memory.device_memory)

    def step_state(
        self,
        optimizer: Any,
        value: np.ndarray,
        name: str,
        like: Any = None,
    ) -> StepState:
        """Return a variable outside of the model, also while a step is traced."""
        # init_scope lifts the variable out of the graph that is being traced. Under
        # a distribution strategy Keras calls fit inside of its scope.
        with tf.init_scope():
            return VariableState(hidden_variable(value, name), lambda v: v.numpy())

    def observe_gradients(
        self, optimizer: Any, observer: hooks.Observer
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo."""
        return hooks.observe_updates(
            optimizer,
            lambda gradients, variables: observer(
                _shaped(_all_reduced(gradients), variables), variables
            ),
        )

    def branches_cost(self, *, compiled: bool) -> bool:
        """Return True for XLA, which keeps in memory what a branch reads."""
        return compiled

    def masked(self, value: Any, kept: Any) -> Any:
        """Return `value` with zeros where `kept` is False."""
        # With zeros that are made of one number: half the time of an array of them.
        return ops.where(kept, value, ops.zeros((), value.dtype))

    def draws_in_trace(self) -> bool:
        """Return whether the graph being traced draws as `tf.random.normal` does."""
        return draws(tf.compat.v1.get_default_graph())

    def gradient_meter(self, *, compiled: bool) -> GradientMeter:
        """Return what measures gradients in a step, which XLA compiles or does not."""
        return CompiledMeter() if compiled else GraphMeter()

    def dense(self, gradient: Any) -> tf.Tensor:
        """Return a gradient as a tensor, the rows of a sparse one summed up."""
        return tf.convert_to_tensor(gradient)

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function: what is compiled is a graph, not Python code."""
        return function

    def after(self, value: Any, other: Any, taken: Callable[[Any], Any]) -> Any:
        """Return `taken(value)`, in a graph with `value` held back for `other`."""
        # Keras runs a grouped convolution as a graph of its own, of eager tensors.
        if not tf.is_symbolic_tensor(other):
            return taken(value)
        # oneDNN makes one operation of a convolution and the padding before it: what
        # the convolution takes must not wait for the padding.
        while other.op.type in _MOVES:
            other = other.op.inputs[0]
        with tf.control_dependencies([other]):
            held = tf.identity(value)
        return taken(held)

    def replicating(self, model: Any) -> AbstractContextManager[Any]:
        """Return a scope in which a variable has a copy for each replica.

        Where a scope is open already, it is the caller's choice.
        """
        if tf.distribute.has_strategy():
            return nullcontext()
        return model.distribute_strategy.scope()


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


ADAPTER: Backend = TensorFlowBackend()
