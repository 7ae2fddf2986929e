"""From measured bytes to an estimate."""

from collections import defaultdict
from dataclasses import replace

from kerasmem.memory.estimate.outcome import answer
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.timeline import Watched
from kerasmem.records import EstimatePart, MemoryEstimate

_FIXED = frozenset({"parameter", "optimizer_state", "input"})


def from_peak(
    request: Request, model: Watched, peak: int, spread: tuple[float, float]
) -> MemoryEstimate:
    """Return the estimate of a measured peak.

    Args:
        request: the question.
        model: its variables.
        peak: bytes.
        spread: multiples of the peak that are the interval.
    """
    sums: dict[tuple[str, str | None], int] = defaultdict(int)
    for variable in model.variables:
        sums[variable.category, variable.layer] += variable.nbytes
    peak = max(peak, sum(sums.values()))
    sums["temporary", None] += peak - sum(sums.values())
    low, high = (round(multiple * peak) for multiple in spread)
    parts = (EstimatePart(*place, size) for place, size in sums.items())
    return answer(request, "step", parts, (low, peak, high))


def scaled(estimate: MemoryEstimate, factor: float) -> MemoryEstimate:
    """Return a traced estimate with all that only a step needs times `factor`."""
    fixed = sum(p.nbytes for p in estimate.parts if p.category in _FIXED)
    parts = tuple(
        part
        if part.category in _FIXED | {"pool"}
        else replace(part, nbytes=round(part.nbytes * factor))
        for part in estimate.parts
    )

    def moved(size: int) -> int:
        return fixed + round((size - fixed) * factor)

    first = estimate.first_step_bytes
    return replace(
        estimate,
        peak_bytes=sum(p.nbytes for p in parts if p.category != "pool"),
        low_bytes=moved(estimate.low_bytes),
        high_bytes=moved(estimate.high_bytes),
        first_step_bytes=None if first is None else moved(first),
        parts=parts,
        method="step",
    )
