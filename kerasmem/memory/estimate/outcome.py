"""The answer to a question."""

from collections.abc import Iterable

from kerasmem.memory.estimate.request import Request
from kerasmem.records import EstimatePart, MemoryEstimate


def answer(
    request: Request,
    method: str,
    parts: Iterable[EstimatePart],
    peak: tuple[int, int, int],
    first: tuple[int | None, ...] = (None, None, None),
) -> MemoryEstimate:
    """Return an estimate.

    Args:
        request: the question.
        method: how it was answered.
        parts: what fills the peak.
        peak: bytes of the lower end of the interval, of the peak, of the upper end.
        first: the same of the first step, as far as it is known.
    """
    low, middle, high = peak
    first_low, first_bytes, first_high = first
    return MemoryEstimate(
        peak_bytes=middle,
        low_bytes=min(low, middle),
        high_bytes=max(high, middle),
        parts=tuple(part for part in parts if part.nbytes),
        batch_size=request.batch_size,
        backend=request.backend,
        jit_compile=request.jit_compile,
        device=request.device,
        training=request.training,
        method=method,
        first_step_bytes=first_bytes,
        first_step_low_bytes=first_low,
        first_step_high_bytes=first_high,
    )
