"""Real steps on TensorFlow's CPU, with the allocator of a GPU."""

from collections.abc import Sequence

from kerasmem import backends
from kerasmem.backends.profile import MemoryEvent
from kerasmem.errors import ModelError, ProfilerUnavailableError
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.measure.batch import run_once, with_batch_size, zeros
from kerasmem.memory.measure.outcome import from_peak
from kerasmem.memory.measure.small import (
    extended,
    peak_in_pool,
    small_batches,
)
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.order import consistent
from kerasmem.records import MemoryEstimate

_SPREAD = (0.88, 1.15)
_STEPS = 3


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate from real steps.

    Raises:
        ModelError: if the allocator of this process does not count.
    """
    (peak,) = peaks_at(request, [request.batch_size])
    return from_peak(request, watched(request.model)[0], peak, _SPREAD)


def peaks_at(request: Request, sizes: Sequence[int]) -> list[int]:
    """Return the peak on this machine's CPU at each batch size.

    Small batches run; from two of them the others are extended.
    """
    ran: dict[int, Sequence[MemoryEvent]] = {}
    peaks = []
    for size in sizes:
        small = small_batches(size)
        if small == (size,):
            peaks.append(_measured(with_batch_size(request, size)))
            continue
        for one in small:
            ran[one] = ran.get(one) or _real_step(with_batch_size(request, one))
        steps = [ran[one] for one in small]
        peaks.append(peak_in_pool(extended(steps, small, size)))
    return peaks


def _measured(request: Request) -> int:
    """Return the measured peak of the later of a few steps."""
    batch = zeros(request)
    run_once(request, batch)
    backends.current().reset_device_peak()
    for _ in range(_STEPS):
        run_once(request, batch)
    return max(reading.peak_bytes for reading in backends.current().device_memory())


def _real_step(request: Request) -> Sequence[MemoryEvent]:
    """Return the events of a later step.

    Raises:
        ModelError: if the allocator of this process does not count.
    """
    batch = zeros(request)
    run_once(request, batch)
    profiler = backends.current().memory_profiler(watched(request.model)[1])
    try:
        profiler.start()
    except ProfilerUnavailableError as error:
        raise ModelError(
            f"A step of {request.model.name!r} cannot be measured: {error}"
        ) from error
    try:
        run_once(request, batch)
    finally:
        profile = profiler.stop()
    return consistent(max((trace.events for trace in profile.traces), key=len))
