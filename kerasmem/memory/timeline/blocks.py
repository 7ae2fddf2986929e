"""Every block from its allocation to its free, with where its operation comes from."""

from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.timeline.names import Names, Origin


@dataclass(slots=True)
class Draft:
    """A block before it has a category.

    Args:
        made: the event that allocated it, None if it was there before.
        allocated_at: number of that event.
        freed_at: number of the event that freed it, None if it is still there.
        gone: the event that freed it.
        origin: where the operation that made it comes from.
        after: phase of the last operation that had started when it was freed.
    """

    made: MemoryEvent | None
    origin: Origin
    allocated_at: int | None = None
    freed_at: int | None = None
    gone: MemoryEvent | None = None
    after: str = "unknown"

    @property
    def event(self) -> MemoryEvent:
        """The event that tells its size and place."""
        event = self.made or self.gone
        if event is None:
            raise ValueError("A block without an event. Expected: made or gone.")
        return event


_BEFORE = Origin(None, "unknown")


def drafts(events: Sequence[MemoryEvent], names: Names) -> list[Draft]:
    """Return the blocks that `events` allocate or free."""
    found: list[Draft] = []
    alive: dict[int, Draft] = {}
    phases = _Phases(events)
    for number, event in enumerate(events):
        if event.is_allocation:
            origin = phases.completed(event, names)
            alive[event.address] = Draft(event, origin, allocated_at=number)
            found.append(alive[event.address])
            continue
        block = alive.pop(event.address, None)
        if block is None:
            block = Draft(None, _BEFORE)
            found.append(block)
        block.freed_at, block.gone = number, event
        block.after = phases.now(event.thread)
    return found


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
