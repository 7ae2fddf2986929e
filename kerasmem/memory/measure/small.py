"""From two small batches to a large one."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from kerasmem.backends.profile import MemoryEvent
from kerasmem.memory.allocator import BFCAllocator, PoolPolicy

_SMALL = 16
_LIMIT = 1 << 50


def small_batches(batch_size: int) -> tuple[int, ...]:
    """Return one or two batch sizes that are cheap to run, ascending.

    Example:
        >>> small_batches(64), small_batches(3), small_batches(1)
        ((8, 16), (3,), (1,))
    """
    if batch_size <= _SMALL:
        return (batch_size,)
    return (_SMALL // 2, _SMALL)


def extended(
    steps: Sequence[Sequence[MemoryEvent]], sizes: Sequence[int], batch_size: int
) -> list[MemoryEvent]:
    """Return the events of a step with more samples than those that ran.

    Each block grows on the line through its sizes in the steps that ran. A line
    through the peaks would not do: another moment may be the fullest with more
    samples.

    Args:
        steps: the events of one step per batch size; all of one allocator.
        sizes: the one or two batch sizes.
        batch_size: the size that is asked for.
    """
    growth = _growth(steps, sizes, batch_size)
    grown: dict[int, int] = {}
    events, more = [], 0
    for number, event in enumerate(steps[-1]):
        if event.is_allocation:
            own = grown[event.address] = growth.get(number, 0)
            more += own
        else:
            own = grown.pop(event.address, 0)
            more -= own
        events.append(
            replace(
                event,
                requested_bytes=event.requested_bytes + own,
                given_bytes=event.given_bytes + own,
                in_use_bytes=event.in_use_bytes + more,
            )
        )
    return events


def peak_of(events: Sequence[MemoryEvent]) -> int:
    """Return the most bytes in use."""
    return max([_before(events), *(event.in_use_bytes for event in events)])


def peak_in_pool(events: Sequence[MemoryEvent]) -> int:
    """Return the most bytes in use in a pool of TensorFlow's, its waste included."""
    pool = BFCAllocator(PoolPolicy(limit_bytes=_LIMIT))
    before = _before(events)
    pool.allocate(max(before, 1))
    waste = pool.in_use_bytes - before  # of standing for many blocks
    blocks: dict[int, int | None] = {}
    for event in events:
        if event.is_allocation:
            blocks[event.address] = pool.allocate(max(event.requested_bytes, 1))
        elif (address := blocks.pop(event.address, None)) is not None:
            pool.free(address)
    return pool.peak_bytes - waste


def _before(events: Sequence[MemoryEvent]) -> int:
    return events[0].in_use_bytes - _change(events[0]) if events else 0


def _growth(
    steps: Sequence[Sequence[MemoryEvent]], sizes: Sequence[int], batch_size: int
) -> dict[int, int]:
    """Return by how much each block of the last step grows, by its event's number."""
    if len(steps) == 1:
        return {}
    factor = (batch_size - sizes[-1]) / (sizes[-1] - sizes[0])
    before, after = (_by_operation(events) for events in steps)
    found = {}
    for operation, blocks in after.items():
        # Threads change the order of an operation's blocks, not that of their sizes.
        pairs = zip(before.get(operation, ()), blocks, strict=False)
        for (small, _), (large, number) in pairs:
            # More samples never need less.
            found[number] = round(factor * max(large - small, 0))
    return found


def _by_operation(
    events: Sequence[MemoryEvent],
) -> dict[str, list[tuple[int, int]]]:
    """Return size and number of each operation's blocks, smallest first."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, event in enumerate(events):
        if event.is_allocation:
            found[event.operation].append((event.requested_bytes, number))
    return {operation: sorted(blocks) for operation, blocks in found.items()}


def _change(event: MemoryEvent) -> int:
    return event.given_bytes if event.is_allocation else -event.given_bytes
