"""Sorts the events of an allocator and builds memory blocks from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.timeline.names import Names, Origin

_REACH = 64


def change(event: MemoryEvent) -> int:
    """Return the change in bytes in use caused by an event."""
    return event.given_bytes if event.is_allocation else -event.given_bytes


def consistent(events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
    """Return the longest gapless run of events in the correct order.

    Threads record events almost simultaneously, so the order follows the allocator's
    count of bytes in use. Each event starts at the count left by its predecessor. A run
    ends where the profiler dropped events.
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
        if follower != position:  # The skipped events keep their order.
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
    """A block without a category.

    Args:
        event: The event that allocated the block, or freed it if the block is older.
        origin: Origin of the operation that allocated the block.
        allocated_at: Index of the allocation event, `None` for an older block.
        freed_at: Index of the free event, `None` for a block still in use.
        after: Phase of the last operation that started before the free.
    """

    event: MemoryEvent
    origin: Origin
    allocated_at: int | None = None
    freed_at: int | None = None
    after: str = "unknown"


_BEFORE = Origin(None, "unknown")


def drafts(events: Sequence[MemoryEvent], names: Names) -> list[Draft]:
    """Return the blocks allocated or freed by `events`."""
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
    """Tracks the current phase of each thread."""

    def __init__(self, events: Sequence[MemoryEvent]) -> None:
        self._of_thread: dict[int, str] = {}
        self._anywhere = "unknown"
        self._step = _step_prefix(events)

    def now(self, thread: int) -> str:
        return self._of_thread.get(thread, self._anywhere)

    def completed(self, event: MemoryEvent, names: Names) -> Origin:
        """Return the origin of an event, by default the phase of its thread."""
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
    """Return TensorFlow's prefix for the operations of a step, or `""`.

    Operations without the prefix prepare the next batches.
    """
    prefix = "StatefulPartitionedCall/"
    return prefix if any(e.operation.startswith(prefix) for e in events) else ""
