"""Torch."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from kerasmem.backends import gradients as hooks
from kerasmem.backends.patching import call_before
from kerasmem.backends.plain import PlainBackend
from kerasmem.backends.protocol import Backend, GradientMeter, StepState
from kerasmem.backends.steps import VariableState, hidden_variable
from kerasmem.backends.torch import ops as torch_ops
from kerasmem.backends.torch.device import TorchSettings
from kerasmem.backends.torch.gradients import TorchMeter
from kerasmem.backends.torch.lazy import TorchLazyValues
from kerasmem.backends.torch.profile import TorchProfiler
from kerasmem.backends.torch.recompute import recomputed
from kerasmem.backends.torch.steps import TorchEvaluation, TorchTraining
from kerasmem.records import DeviceReading

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class TorchBackend(PlainBackend):
    """What kerasmem asks of torch."""

    name = "torch"
    runs_eagerly = True
    pools_memory = False
    limits_itself = True
    copies_arrays = False
    adds_along_any_axis = False
    recovers_logits = False
    hands_state_on = False
    converts_models = False
    fuses_fake_quantization = False
    ops: Any = torch_ops
    _recomputed = staticmethod(recomputed)
    lazy_values = TorchLazyValues
    settings = TorchSettings
    memory_profiler = TorchProfiler
    training = TorchTraining
    evaluation = TorchEvaluation
    observe_loss_scaling = staticmethod(hooks.observe_finiteness)
    inference = torch.no_grad

    def device_memory(self) -> tuple[DeviceReading, ...]:
        """Return a reading per CUDA device; other devices give none."""
        return tuple(_reading(index) for index in range(torch.cuda.device_count()))

    def reset_device_peak(self) -> bool:
        """Set every peak to what is in use now; False if no device is counted."""
        if not torch.cuda.is_initialized():
            return False
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)
        return True

    def observe_peak_resets(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Call `observer()` before anybody starts a new peak; return the undo."""
        undo = ExitStack()
        # One function by two names, of which torch's own callers look up the second,
        # and the one for devices of any kind.
        for module in (torch.cuda, torch.cuda.memory, torch.accelerator):
            undo.callback(call_before(module, "reset_peak_memory_stats", observer))
        return undo.close

    def why_no_device_memory(self) -> str:
        """Return one plain sentence for a user who gets no device figures."""
        return "torch counts no memory on a CPU device, so there is no device series."

    def input_bytes(self) -> int | None:
        """Return the pinned bytes in use, from which batches go to a CUDA device."""
        if not torch.cuda.is_initialized():
            return None
        return torch.cuda.host_memory_stats().get("active_bytes.current")

    def cuda_ordinals(self) -> dict[str, int]:
        """Return CUDA's number of the card below each device."""
        return {_name(index): index for index in range(torch.cuda.device_count())}

    def processes(
        self,
        model: Any,
    ) -> tuple[int, int]:
        """Return the index of this process and the number that train together."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return (
            int(os.environ.get("RANK", "0")),
            int(os.environ.get("WORLD_SIZE", "1")),
        )

    def traces(
        self,
        model: Any,
    ) -> int | None:
        """Return None: torch runs the step itself, or counts its traces nowhere."""
        return None

    def step_state(
        self,
        optimizer: Any,
        value: np.ndarray,
        name: str,
        like: Any = None,
    ) -> StepState:
        """Return a variable outside of the model."""
        return VariableState(hidden_variable(value, name), _to_numpy)

    def observe_gradients(
        self, optimizer: Any, observer: hooks.Observer
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo."""
        return hooks.observe_updates(optimizer, _uncompiled(observer))

    def branches_cost(self, *, compiled: bool) -> bool:
        """Return False: the step is no graph."""
        return False

    def masked(self, value: Any, kept: Any) -> Any:
        """Overwrite `value` with zeros where `kept` is False, and return it."""
        # In place: a new tensor that the variable then copies takes several times as
        # long. By bits, because a product keeps NaN and makes -0.0.
        bits = value.detach().view(_INTEGERS[value.element_size()])
        bits.bitwise_and_(kept.view(torch.int8).neg())
        return value

    def draws_in_trace(self) -> bool:
        """Return False: nothing is traced."""
        return False

    def gradient_meter(
        self,
        *,
        compiled: bool,
    ) -> GradientMeter:
        """Return what measures gradients in a step."""
        return TorchMeter()

    def uncompiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with an end put before it to what Dynamo compiles."""
        disable: Any = torch.compiler.disable
        return disable(function)


def _to_numpy(parameter: torch.Tensor) -> np.ndarray:
    return parameter.detach().cpu().numpy()


def _uncompiled(observer: hooks.Observer) -> hooks.Observer:
    # An observer counts steps in Python: what torch.compile makes of that would hold
    # for one count only.
    disable: Any = torch.compiler.disable

    def observe(
        gradients: Sequence[Any], variables: Sequence[Any]
    ) -> Callable[[], None] | None:
        finish = observer(gradients, variables)
        return None if finish is None else disable(finish)

    return disable(observe)


def _name(index: int) -> str:
    return f"cuda:{index}"


def _reading(index: int) -> DeviceReading:
    stats = torch.cuda.memory_stats(index)
    return DeviceReading(
        name=_name(index),
        current_bytes=stats.get("allocated_bytes.all.current", 0),
        peak_bytes=stats.get("allocated_bytes.all.peak", 0),
        peak_was_reset=True,
        # The largest free block takes a walk over the whole pool: too dear a reading.
        reserved_bytes=stats.get("reserved_bytes.all.current"),
    )


ADAPTER: Backend = TorchBackend()
