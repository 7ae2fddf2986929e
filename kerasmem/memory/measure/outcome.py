"""From measured bytes to an estimate."""

from collections import defaultdict

from kerasmem.memory.estimate.outcome import answer
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.timeline import Watched
from kerasmem.records import EstimatePart, MemoryEstimate


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
