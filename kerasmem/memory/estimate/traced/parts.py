"""From a simulated timeline to an estimate."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.estimate.request import Request
from kerasmem.records import Block, EstimatePart, MemoryEstimate, Timeline


@dataclass(frozen=True)
class Figures:
    """What a simulation came to, beside its timeline.

    Args:
        low_bytes: lower end of the interval.
        high_bytes: upper end of it.
        first_step_bytes: peak of the first step.
        beside_bytes: bytes that the device holds beside the timeline's, such as the
            workspace of a library.
        pool_bytes: bytes of the allocator's pool; 0 if unknown.
        held: category and layer of blocks that the step did not make, by address.
        constant_bytes: bytes of constants, which are there before the step and which
            the timeline does not know.
    """

    low_bytes: int
    high_bytes: int
    first_step_bytes: int | None = None
    beside_bytes: int = 0
    pool_bytes: int = 0
    held: Mapping[int, tuple[str, str | None]] = field(default_factory=dict)
    constant_bytes: int = 0


def to_estimate(
    request: Request,
    timeline: Timeline,
    events: Sequence[MemoryEvent],
    figures: Figures,
    method: str,
) -> MemoryEstimate:
    """Return the estimate of a simulated step.

    Args:
        request: the question.
        timeline: the step.
        events: what the timeline was made of.
        figures: what else is known.
        method: name of the method.
    """
    peak = timeline.peak_bytes + figures.beside_bytes
    sums: dict[tuple[str, str | None], int] = defaultdict(int)
    for block in timeline.alive(timeline.peak_event):
        sums[_place(block, events, figures)] += block.requested_bytes
        sums["rounding", None] += block.given_bytes - block.requested_bytes
    sums["workspace", None] += figures.beside_bytes
    sums["rounding", None] -= figures.constant_bytes
    sums["temporary", None] += figures.constant_bytes
    sums["pool", None] += max(figures.pool_bytes - timeline.peak_bytes, 0)
    return MemoryEstimate(
        peak_bytes=peak,
        low_bytes=min(figures.low_bytes, peak),
        high_bytes=max(figures.high_bytes, peak),
        parts=tuple(
            EstimatePart(category, layer, nbytes)
            for (category, layer), nbytes in sums.items()
            if nbytes
        ),
        batch_size=request.batch_size,
        backend=request.backend,
        jit_compile=request.jit_compile,
        device=request.device,
        training=request.training,
        method=method,
        first_step_bytes=figures.first_step_bytes,
    )


def _place(
    block: Block, events: Sequence[MemoryEvent], figures: Figures
) -> tuple[str, str | None]:
    """Return category and layer of a block."""
    if block.allocated_at is None:
        # What the step did not make and nobody knows is what the allocator wasted.
        own = "rounding" if block.category == "unknown" else block.category
        return figures.held.get(block.address, (own, block.layer))
    scratch = events[block.allocated_at].is_scratch
    return ("workspace" if scratch else block.category), block.layer
