"""Events of an allocator in their order, and blocks made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.timeline.names import Names, Origin

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


@dataclass(slots=True)
class Draft:
    """A block before it has a category.

    Args:
        event: the event that allocated it, or, if it was there before, freed it.
        origin: where the operation that made it comes from.
        allocated_at: number of the event that allocated it, None if it was there
            before.
        freed_at: number of the event that freed it, None if it is still there.
        after: phase of the last operation that had started when it was freed.
    """

    event: MemoryEvent
    origin: Origin
    allocated_at: int | None = None
    freed_at: int | None = None
    after: str = "unknown"


_BEFORE = Origin(None, "unknown")


def drafts(events: Sequence[MemoryEvent], names: Names) -> list[Draft]:
    """Return the blocks that `events` allocate or free."""
    blocks: list[Draft] = []
    alive: dict[int, Draft] = {}
    phases = _Phases(events)
    for number, event in enumerate(events):
        if event.is_allocation:
            origin = phases.completed(event, names)
            alive[event.address] = Draft(event, origin, allocated_at=number)
            blocks.append(alive[event.address])
            continue
        block = alive.pop(event.address, None)
        if block is None:
            block = Draft(event, _BEFORE)
            blocks.append(block)
        block.freed_at = number
        block.after = phases.now(event.thread)
    return blocks


class _Phases:
    """In which phase of a step each thread is."""

    def __init__(self, events: Sequence[MemoryEvent]) -> None:
        self._of_thread: dict[int, str] = {}
        self._anywhere = "unknown"
        self._step = _step_prefix(events)

    def now(self, thread: int) -> str:
        return self._of_thread.get(thread, self._anywhere)

    def completed(self, event: MemoryEvent, names: Names) -> Origin:
        """Return where an event comes from; what has no name is where its thread is."""
        if event.phase != "unknown":
            origin = Origin(event.layer, event.phase)
        elif event.operation:
            origin = names.origin(event.operation)
            if self._step and not event.operation.startswith(self._step):
                origin = Origin(None, "input")
        else:
            origin = _BEFORE
        if origin.phase == "unknown":
            return Origin(origin.layer, self.now(event.thread), origin.place)
        self._of_thread[event.thread] = origin.phase
        if origin.phase != "input":
            self._anywhere = origin.phase
        return origin


def _step_prefix(events: Sequence[MemoryEvent]) -> str:
    """Return what TensorFlow puts before every operation of a step, if it does.

    What runs beside the step prepares the next batches.
    """
    prefix = "StatefulPartitionedCall/"
    return prefix if any(e.operation.startswith(prefix) for e in events) else ""
