"""Events become blocks, blocks become a timeline."""

import math
from collections.abc import Sequence

from kerasmem.backends.profile import AllocatorTrace, MemoryEvent, Profile
from kerasmem.memory.timeline.blocks import drafts
from kerasmem.memory.timeline.categories import Categories
from kerasmem.memory.timeline.held import HeldVariables
from kerasmem.memory.timeline.names import Names
from kerasmem.memory.timeline.order import change, consistent
from kerasmem.memory.timeline.watched import Watched
from kerasmem.records import Timeline


def timelines(
    profile: Profile, model: Watched, style: str, steps: range
) -> list[Timeline]:
    """Return a timeline per allocator, fullest first.

    At every event the bytes given to the blocks in use are the allocator's own
    figure.

    Args:
        profile: what the profiler saw.
        model: the model that was trained.
        style: how operations are named, as in `MemoryProfiler.names`.
        steps: the steps in the window.
    """
    names = Names(model, style)
    made = []
    for trace in profile.traces:
        if trace.events:
            held = HeldVariables(model, trace.device, profile.opening, profile.closing)
            made.append(_timeline(trace, names, held, steps))
    return sorted(made, key=lambda timeline: -timeline.peak_bytes)


def _timeline(
    trace: AllocatorTrace, names: Names, held: HeldVariables, steps: range
) -> Timeline:
    if trace.source == "buffer assignment":
        steps = steps[:1]  # the plan is the same for every step
    events = consistent(trace.events)
    first = events[0]
    opening_bytes = first.in_use_bytes - change(first)
    found = drafts(events, names)
    blocks = Categories(found, held, len(steps)).blocks()
    opened = sum(b.given_bytes for b in blocks if b.allocated_at is None)
    blocks += held.still_there(opening_bytes - opened, trace.rounding_bytes)
    return Timeline(
        allocator=trace.allocator,
        source=trace.source,
        first_step=steps.start,
        steps=len(steps),
        opening_bytes=opening_bytes,
        times_ns=tuple(event.time_ns - first.time_ns for event in events),
        in_use_bytes=tuple(event.in_use_bytes for event in events),
        reserved_bytes=_series(events, "reserved_bytes"),
        fragmentation=tuple(
            0.0 if math.isnan(share) else round(share, 4)
            for share in _series(events, "fragmentation")
        ),
        blocks=tuple(blocks),
        lost_events=len(trace.events) - len(events),
    )


def _series(events: Sequence[MemoryEvent], name: str) -> tuple:
    values = tuple(getattr(event, name) for event in events)
    return () if None in values else values
