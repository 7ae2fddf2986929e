"""Recorded allocations, played again; timelines in the folder of a run."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kerasmem.errors import ConfigError
from kerasmem.files.read_run import read_run
from kerasmem.files.timelines import add_timelines
from kerasmem.memory.allocator.bfc import BFCAllocator
from kerasmem.memory.allocator.pool import PoolPolicy, rounded
from kerasmem.memory.allocator.watcher import MemoryWatcher, cause_of
from kerasmem.records import Block, Timeline
from kerasmem.units import format_bytes, parse_bytes


def save_timeline(timeline: Timeline, log_dir: str | os.PathLike[str]) -> Path:
    """Add a timeline to a run's folder and return the path of its file.

    `kerasmem report LOG_DIR -o page.html` then draws what is in use over time, and the
    addresses.

    Args:
        timeline: recorded, of a `MemoryWatcher`, or of a `Replay`.
        log_dir: the folder; made if it is not there.

    Raises:
        OutputError: if it cannot be written.
    """
    return add_timelines(Path(log_dir), [timeline])


def load_timelines(log_dir: str | os.PathLike[str]) -> tuple[Timeline, ...]:
    """Return the timelines in a run's folder, such as `MemoryTimeline` writes.

    Raises:
        InputError: if there is no such folder, or nothing of a run in it.
    """
    return read_run(Path(log_dir)).timelines


@dataclass(frozen=True)
class Replay:
    """What became of a timeline under a policy.

    Args:
        timeline: what the simulated allocator did, the blocks in use at the opening
            allocated first; up to the refusal if there was one.
        refused: the block that was not to be had, None if all were.
        refusal: why it was not and what would help, in words; None if nothing was
            refused.
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


def replay(timeline: Timeline, policy: PoolPolicy | int | str) -> Replay:
    """Return what `timeline`'s requests come to under another policy.

    The order of requests is the recorded one. A real run that is short of memory may
    wait for another operation to end, so a refusal here is a likely one, not a sure
    one.

    Args:
        timeline: a window that was recorded with every block (`folded` is 0).
        policy: limit and growth of the allocator to simulate; or the limit alone, in
            bytes or as a text such as `"8GiB"`, of a pool that grows.

    Raises:
        ConfigError: if blocks of the timeline were put together.
    """
    if timeline.folded:
        raise ConfigError(
            "Blocks of this timeline were put together to keep its file small, so they "
            "cannot be replayed. Expected: folded=0. Received: folded="
            f"{timeline.folded}. Next: record fewer steps."
        )
    if not isinstance(policy, PoolPolicy):
        policy = PoolPolicy(limit_bytes=parse_bytes(policy))
    watcher = MemoryWatcher(BFCAllocator(policy))
    refused = _run(timeline, watcher)
    done = replace(
        watcher.timeline(),
        allocator=f"{timeline.allocator}, in {format_bytes(policy.limit_bytes)}",
        first_step=timeline.first_step,
        steps=timeline.steps,
    )
    if refused is None:
        return Replay(done, None, None)
    cause = cause_of(watcher.allocator, refused.requested_bytes)
    return Replay(done, refused, f"{cause} {_remedy(timeline, policy)}")


def _run(timeline: Timeline, watcher: MemoryWatcher) -> Block | None:
    """Run the requests; return the block that was refused."""
    addresses: dict[int, int] = {}
    for is_allocation, number in _operations(timeline.blocks):
        block = timeline.blocks[number]
        if not is_allocation:
            watcher.free(addresses.pop(number))
            continue
        address = watcher.allocate(
            max(block.requested_bytes, 1),
            holder=block.layer,
            category=block.category,
            phase=block.phase,
            operation=block.operation,
        )
        if address is None:
            return block
        addresses[number] = address
    return None


def _remedy(timeline: Timeline, policy: PoolPolicy) -> str:
    """Return what would help; that preallocation does was tried."""
    if policy.growth and replay(timeline, replace(policy, growth=False)).fits:
        return "Preallocated (growth=False) everything fits."
    blocks = format_bytes(_peak_of_requests(timeline))
    if _peak_of_requests(timeline) <= policy.most_bytes:
        return (
            f"The blocks themselves take at most {blocks} at once: the allocator "
            "cuda_malloc_async, which leaves fewer gaps, may fit them."
        )
    return (
        f"The blocks themselves take {blocks} at once, which no allocator fits in: "
        "make the batch smaller."
    )


def _peak_of_requests(timeline: Timeline) -> int:
    most = now = 0
    for is_allocation, number in _operations(timeline.blocks):
        size = rounded(timeline.blocks[number].requested_bytes)
        now += size if is_allocation else -size
        most = max(most, now)
    return most


def _operations(blocks: tuple[Block, ...]) -> Iterator[tuple[bool, int]]:
    """Yield `(is_allocation, number of the block)` in the order of events."""
    for number, block in enumerate(blocks):
        if block.allocated_at is None:
            yield True, number
    events = [(b.allocated_at, True, n) for n, b in enumerate(blocks)]
    events += [(b.freed_at, False, n) for n, b in enumerate(blocks)]
    for _, is_allocation, number in sorted(e for e in events if e[0] is not None):
        yield is_allocation, number
