"""The order in which an allocator did what several threads asked for."""

from collections.abc import Sequence

from kerasmem.backends.profile import MemoryEvent

_REACH = 64


def change(event: MemoryEvent) -> int:
    """Return by how many bytes the event changes what is in use."""
    return event.given_bytes if event.is_allocation else -event.given_bytes


def consistent(events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
    """Return the longest run of events that leaves none out, in the right order.

    Threads note their events at about the same time, so clocks alone do not tell
    the order, but the allocator's own count does: each event begins where the one
    before it ended. Where events are missing (a profiler may drop some) a run ends.
    """
    waiting = sorted(events, key=lambda event: event.time_ns)
    best: list[MemoryEvent] = []
    run: list[MemoryEvent] = []
    position = 0
    while position < len(waiting):
        follower = _follower(run, waiting, position)
        if follower is None:
            best, run = max(best, run, key=len), []
            follower = position
        if follower != position:  # those that it overtakes keep their order
            waiting.insert(position, waiting.pop(follower))
        run.append(waiting[position])
        position += 1
    return max(best, run, key=len)


def _follower(
    run: list[MemoryEvent], waiting: list[MemoryEvent], position: int
) -> int | None:
    if not run:
        return position
    in_use = run[-1].in_use_bytes
    for index in range(position, min(position + _REACH, len(waiting))):
        event = waiting[index]
        if in_use + change(event) == event.in_use_bytes:
            return index
    return None
