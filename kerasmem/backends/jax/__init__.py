"""JAX."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import jax
import keras
import numpy as np
from jax.core import Tracer
from keras import ops

from kerasmem.backends import gradients as hooks
from kerasmem.backends.jax.device import JaxSettings
from kerasmem.backends.jax.gradients import JaxMeter
from kerasmem.backends.jax.lazy import JaxLazyValues
from kerasmem.backends.jax.profile import JaxProfiler
from kerasmem.backends.jax.recompute import recomputed
from kerasmem.backends.jax.steps import DirectWrites, JaxEvaluation, JaxTraining
from kerasmem.backends.options import StepOptions
from kerasmem.backends.patching import patch_method
from kerasmem.backends.plain import PlainBackend
from kerasmem.backends.protocol import Backend, GradientMeter
from kerasmem.backends.steps import count_traces
from kerasmem.records import DeviceReading


class _JaxOptions(StepOptions):
    """What can be chosen of a step in JAX."""

    def device_count(self, cards: int) -> int:
        """Return the number of devices to train on, which a CPU may have several of."""
        return cards or len(keras.distribution.list_devices())


class OptimizerState:
    """A `StepState` among the optimizer's variables, hidden from checkpoints."""

    def __init__(
        self, optimizer: Any, value: np.ndarray, name: str, like: Any = None
    ) -> None:
        # A loss scaling optimizer takes its own variables from before the update,
        # so the state rides in the optimizer that updates.
        self._optimizer = hooks.innermost(optimizer)
        self.variable = self._optimizer.add_variable(
            shape=value.shape,
            dtype=str(value.dtype),
            # Private: as Keras itself lays out what an optimizer keeps of a variable.
            layout=getattr(like, "_layout", None),
            name=name,
        )
        self.variable.assign(value)
        self._undo = [
            patch_method(saved, method, self._without)
            for saved in {id(o): o for o in (optimizer, self._optimizer)}.values()
            for method in ("save_own_variables", "load_own_variables")
        ]

    def read(self) -> np.ndarray:
        """Return a copy of the current value."""
        return np.array(self.variable.value)

    def write(self, value: np.ndarray) -> None:
        """Set the value."""
        self.variable.assign(value)

    def release(self) -> None:
        """Take the variable out of the optimizer, and the hiding with it."""
        while self._undo:
            self._undo.pop()()
        _remove(_tracked(self._optimizer), self.variable)
        self._optimizer._untrack_variable(self.variable)

    def _without(self, original: Any, store: Any) -> Any:
        variables = _tracked(self._optimizer)
        place = _place(variables, self.variable)
        if place is None:
            # Released a moment ago, or left out already: a loss scaling optimizer
            # saves the one inside of it.
            return original(store)
        _remove(variables, self.variable)
        try:
            return original(store)
        finally:
            # Not the list of before: an attachment may release states in `original`.
            if self._undo:
                variables[place:place] = [self.variable]


class JaxBackend(PlainBackend):
    """What kerasmem asks of JAX."""

    name = "jax"
    runs_eagerly = False
    pools_memory = True
    limits_itself = False
    copies_arrays = False
    adds_along_any_axis = False
    recovers_logits = False
    hands_state_on = True
    converts_models = False
    fuses_fake_quantization = False
    ops: Any = keras.ops
    _recomputed = staticmethod(recomputed)
    lazy_values = JaxLazyValues
    step_options = _JaxOptions
    settings = JaxSettings
    memory_profiler = JaxProfiler
    training = JaxTraining
    evaluation = JaxEvaluation
    observe_gradients = staticmethod(hooks.observe_updates)
    inference = nullcontext
    step_state = OptimizerState

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per local device; a CPU device gives none."""
        figures = [(d, d.memory_stats()) for d in jax.local_devices()]
        return tuple(_reading(device, stats) for device, stats in figures if stats)

    def reset_device_peak(self) -> bool:
        """Return False: JAX keeps one peak for the whole process."""
        return False

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        return "JAX counts no memory on a CPU device, so there is no device series."

    def input_bytes(self) -> int | None:
        """Return None: JAX counts no memory of the host."""
        return None

    def cuda_ordinals(self) -> dict[str, int]:
        """Return CUDA's number of the card below each local device."""
        return {
            _name(device): device.local_hardware_id
            for device in jax.local_devices()
            if device.platform == "gpu"
        }

    def processes(
        self,
        model: Any,
    ) -> tuple[int, int]:
        """Return the index of this process and the number that train together."""
        return jax.process_index(), jax.process_count()

    def compiles_with_xla(self, model: Any) -> bool:
        """Return True: a step that runs eagerly calls compiled operations."""
        return True

    def copies_for_step(self, variables: Iterable[Any]) -> list[Any]:
        """Return copies: the memory of a step's state is given away."""
        return [
            keras.Variable(keras.ops.copy(v.value), dtype=v.dtype, trainable=False)
            for v in variables
        ]

    def direct_writes(self, model: Any) -> DirectWrites:
        """Return what stands in for the compiled step."""
        return DirectWrites(model)

    def traces(self, model: Any) -> int | None:
        """Return how many traces the training step has, None where JAX does not tell.

        It does not before the first step, nor for a step that found the 8,192 places
        of the process full, in which JAX keeps what it has compiled for fast calls.
        """
        # Private, for want of a public count: the entries of the compiled step's cache.
        return count_traces(model, "_cache_size") or None

    def observe_loss_scaling(
        self, optimizer: Any, observer: Callable[[Any], None]
    ) -> Callable[[], None]:
        """Call `observer(finite)` in every step of a loss scaling optimizer."""
        if not hooks.scales_loss(optimizer):
            return hooks.nothing_to_undo

        # Keras asks `check_finite` outside of any stateless scope, where nothing
        # can be assigned; so it is asked once more, around the whole update.
        def apply(original: Any, state: Any, gradients: Any, trainable: Any) -> Any:
            finite = optimizer.check_finite(gradients)
            trainable, state = original(state, gradients, trainable)
            variables = optimizer.variables
            mapping = list(zip(variables, state, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                observer(finite)
            return trainable, [scope.get_current_value(v) for v in variables]

        return patch_method(optimizer, "stateless_apply", apply)

    def branches_cost(self, *, compiled: bool) -> bool:
        """Return True: XLA keeps in memory what a branch reads."""
        return True

    def masked(self, value: Any, kept: Any) -> Any:
        """Return `value` with zeros where `kept` is False."""
        # With zeros that are made of one number: half the time of an array of them.
        return ops.where(kept, value, ops.zeros((), value.dtype))

    def draws_in_trace(self) -> bool:
        """Return False: every draw on JAX has its key."""
        return False

    def gradient_meter(
        self,
        *,
        compiled: bool,
    ) -> GradientMeter:
        """Return what measures gradients in a step."""
        return JaxMeter()

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function: what is compiled is a graph, not Python code."""
        return function

    def after(self, value: Any, other: Any, taken: Callable[[Any], Any]) -> Any:
        """Return `taken(value)`, in a trace by a foregone choice that needs `other`."""
        # First: the choice reads all that it is given.
        value = taken(value)
        if not isinstance(other, Tracer) or not other.size:
            return value
        # XLA drops its own barrier before it schedules for a CPU. It does not see that
        # a truth value is never 2.
        truth = jax.numpy.ravel(other)[0] != 0
        return jax.numpy.where(truth.astype("int8") == 2, 0, value).astype(value.dtype)


def _name(device: Any) -> str:
    return f"{device.platform}:{device.id}"


def _reading(device: Any, stats: dict[str, int]) -> DeviceReading:
    return DeviceReading(
        name=_name(device),
        current_bytes=stats["bytes_in_use"],
        peak_bytes=stats["peak_bytes_in_use"],
        peak_was_reset=False,
        # Zero where the allocator has the entry but does not fill it.
        reserved_bytes=stats.get("pool_bytes") or None,
        largest_free_bytes=stats.get("largest_free_block_bytes") or None,
    )


def _tracked(optimizer: Any) -> list[Any]:
    # Private: `optimizer.variables` is a copy, and there is no public way to take a
    # variable out again or to leave one out of a checkpoint.
    return optimizer._variables


# By identity: `list.index` and `list.remove` would compare the values of JAX arrays.
def _place(variables: list[Any], variable: Any) -> int | None:
    return next((i for i, kept in enumerate(variables) if kept is variable), None)


def _remove(variables: list[Any], variable: Any) -> None:
    variables[:] = [kept for kept in variables if kept is not variable]


ADAPTER: Backend = JaxBackend()
