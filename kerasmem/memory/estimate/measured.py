"""Method "measured": real steps on the CPU with the allocator of a GPU."""

from collections.abc import Sequence

from kerasmem import backends
from kerasmem.backends.profile import MemoryEvent
from kerasmem.checks import invalid
from kerasmem.errors import ConfigError
from kerasmem.memory.estimate.inputs import run_once, zeros
from kerasmem.memory.estimate.request import Request, answer_in_child
from kerasmem.memory.estimate.traced.on_torch import later_step
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.blocks import change
from kerasmem.records import EstimatePart, MemoryEstimate

COUNTING_ALLOCATOR = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment in which TensorFlow's CPU uses the GPU allocator with its counters."""
_SPREAD = {"tensorflow": (0.88, 1.15), "torch": (0.92, 1.08)}
"""Bounds of the interval as multiples of the peak."""
_STEPS = 3


def estimate(request: Request) -> MemoryEstimate:
    """Estimate the memory of a step from real steps in a child process.

    Raises:
        ConfigError: If the step cannot be measured on the CPU of this machine.
        ModelError: If the child process cannot restore the model from its config.
    """
    if request.device != "cpu" or request.sharding.devices > 1:
        device = request.card or request.device
        raise ConfigError(
            "A step is measured on the CPU of this machine. Expected: device='cpu' and "
            f"no distribution. Received: {device=} and {request.sharding.devices} "
            "devices. Next: leave out device, or pass method='analytic'."
        )
    if request.generate is not None:
        valid = "None with method='measured'"
        raise invalid("estimate_memory", "generate", request.generate, valid)
    if request.backend == "jax":
        raise ConfigError(
            "JAX does not report how much memory it uses on a CPU. Expected: backend="
            "'tensorflow' or 'torch' with method='measured'. Received: backend='jax'. "
            "Next: pass method='traced'."
        )
    return answer_in_child(__name__, request, COUNTING_ALLOCATOR)


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Estimate the memory from real steps in this process.

    The model is trained for a few steps on zeros, so it must be a copy.
    """
    peak = peak_in_process(request)
    sums = watched(request.model)[0].bytes_by_place()
    peak = max(peak, sum(sums.values()))
    sums["temporary", None] += peak - sum(sums.values())
    low, high = (round(multiple * peak) for multiple in _SPREAD[request.backend])
    parts = (EstimatePart(*place, size) for place, size in sums.items())
    return request.answer("measured", parts, (low, peak, high))


def peak_in_process(request: Request) -> int:
    """Return the measured peak of a later step, on TensorFlow or torch."""
    if request.backend == "tensorflow":
        return later_peak(request, _STEPS) or 0
    return peak_of(later_step(request))


def later_peak(request: Request, steps: int) -> int | None:
    """Return the measured peak after the first step, or `None` if unknown."""
    batch = zeros(request)
    run_once(request, batch)
    backends.current().reset_device_peak()
    for _ in range(steps):
        run_once(request, batch)
    readings = backends.current().device_memory()
    return max((reading.peak_bytes for reading in readings), default=None)


def peak_of(events: Sequence[MemoryEvent]) -> int:
    """Return the maximum bytes in use."""
    before = events[0].in_use_bytes - change(events[0])
    return max([before, *(event.in_use_bytes for event in events)])
