"""What was in use at the peak: measured where there is a timeline, else estimated."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.records import (
    MEASURED,
    EstimatePart,
    MemoryEstimate,
    Timeline,
)

_PLANNED = "buffer assignment"


@dataclass(frozen=True)
class Alive:
    """What is in use at a peak.

    Args:
        peak_bytes: bytes in use.
        source: `"measured"`, or the method by which it was estimated.
        parts: what they are; they add up to `peak_bytes`.
    """

    peak_bytes: int
    source: str
    parts: tuple[EstimatePart, ...]


def measured(timelines: Sequence[Timeline]) -> Alive | None:
    """Return what filled the fullest allocator at its peak, None without a timeline.

    XLA's plan for a step is left out: it leaves out what is not in the step.
    """
    seen = [one for one in timelines if one.source != _PLANNED and one.blocks]
    if not seen:
        return None
    fullest = max(seen, key=lambda timeline: timeline.peak_bytes)
    sums: Counter[tuple[str, str | None]] = Counter()
    for block in fullest.alive(fullest.peak_event):
        sums[block.category, block.layer] += block.given_bytes
    parts = tuple(EstimatePart(*key, size) for key, size in sums.most_common() if size)
    return Alive(fullest.peak_bytes, MEASURED, parts)


def estimated(estimate: MemoryEstimate) -> Alive:
    """Return what is estimated to be in use at the peak.

    What the allocator would hold beside it is left out: there is a limit.
    """
    used = tuple(part for part in estimate.parts if part.category != "pool")
    return Alive(estimate.peak_bytes, estimate.method, used)
