"""Real steps of torch on the CPU, counted as its allocator for CUDA would."""

from collections.abc import Sequence

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.on_torch import beside, later_step
from kerasmem.memory.measure.batch import with_batch_size
from kerasmem.memory.measure.outcome import from_peak
from kerasmem.memory.measure.small import extended, peak_of, small_batches
from kerasmem.memory.timeline import watched
from kerasmem.records import MemoryEstimate

_SPREAD = (0.92, 1.08)


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate from real steps."""
    (peak,) = peaks_at(request, [request.batch_size])
    return from_peak(request, watched(request.model)[0], peak, _SPREAD)


def peaks_at(request: Request, sizes: Sequence[int]) -> list[int]:
    """Return the peak at each batch size; small ones run, the others are extended."""
    ran: dict[int, Sequence[MemoryEvent]] = {}
    peaks = []
    for size in sizes:
        small = small_batches(size)
        for one in small:
            ran[one] = ran.get(one) or later_step(with_batch_size(request, one))
        steps = [ran[one] for one in small]
        peaks.append(peak_of(extended(steps, small, size)) + beside(request))
    return peaks
