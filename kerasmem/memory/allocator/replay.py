"""A recorded timeline once more, under another limit or another way to grow."""

from dataclasses import dataclass

from kerasmem.memory.allocator.bfc import BFCAllocator, PoolPolicy
from kerasmem.memory.allocator.watcher import MemoryWatcher
from kerasmem.records import Block, Timeline


@dataclass(frozen=True)
class Replay:
    """What became of a timeline under a policy.

    Args:
        timeline: what the simulated allocator did, the blocks in use at the opening
            allocated first; up to the refusal if there was one.
        refused: the block that was not to be had, None if all were.
        refusal: why it was not, in words; None if nothing was refused.
    """

    timeline: Timeline
    refused: Block | None
    refusal: str | None

    @property
    def fits(self) -> bool:
        """Whether every request was served."""
        return self.refused is None

    @property
    def peak_bytes(self) -> int:
        """Most bytes in use at once."""
        return self.timeline.peak_bytes

    @property
    def pool_bytes(self) -> int:
        """Most bytes that the pool took from the device."""
        return max(self.timeline.reserved_bytes, default=0)


def replay(timeline: Timeline, policy: PoolPolicy) -> Replay:
    """Return what `timeline`'s requests come to under another policy.

    The order of requests is the recorded one. A real run that is short of memory may
    wait for another operation to end, so a refusal here is a likely one, not a sure
    one.

    Args:
        timeline: a window that was recorded with every block (`folded` is 0).
        policy: limit and growth of the allocator to simulate.
    """
    watcher = MemoryWatcher(BFCAllocator(policy))
    addresses: dict[int, int] = {}
    for is_allocation, number in _operations(timeline.blocks):
        block = timeline.blocks[number]
        if not is_allocation:
            watcher.free(addresses.pop(number))
            continue
        address = watcher.allocate(
            block.requested_bytes,
            holder=block.layer,
            category=block.category,
            phase=block.phase,
            operation=block.operation,
        )
        if address is None:
            return Replay(watcher.timeline(), block, watcher.refusal)
        addresses[number] = address
    return Replay(watcher.timeline(), None, None)


def _operations(blocks: tuple[Block, ...]) -> list[tuple[bool, int]]:
    """Return `(is_allocation, number of the block)` in the order of events."""
    events = [(b.allocated_at, True, n) for n, b in enumerate(blocks)]
    events += [(b.freed_at, False, n) for n, b in enumerate(blocks)]
    opening = [(yes, n) for at, yes, n in events if at is None and yes]
    later = sorted((at, yes, n) for at, yes, n in events if at is not None)
    return opening + [(yes, n) for _, yes, n in later]
