"""What an allocator did, recorded and played again, and why it refused a request."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kerasmem.errors import ConfigError
from kerasmem.files.read_run import read_run
from kerasmem.files.run_dir import add_timelines
from kerasmem.memory.allocator.bfc import BFCAllocator, PoolPolicy, rounded
from kerasmem.records import Block, Timeline
from kerasmem.units import format_bytes, parse_bytes


def why_refused(allocator: BFCAllocator, size: int) -> str:
    """Explain why an allocator refused a request: size, limit or fragmentation.

    Args:
        allocator: as it was when it refused.
        size: bytes asked for, from 1.

    Returns:
        One or two sentences: the cause, and what would help.

    Example:
        >>> allocator = BFCAllocator(PoolPolicy(limit_bytes=1 << 20))
        >>> print(why_refused(allocator, 2 << 20).partition(". ")[0])
        2.00 MiB in one piece is more than the limit of 1.00 MiB
    """
    cause, remedy = _refusal(allocator, size)
    return f"{cause}{remedy}"


def _refusal(allocator: BFCAllocator, size: int) -> tuple[str, str]:
    need, most = rounded(size), allocator.policy.most_bytes
    request, limit = format_bytes(size), format_bytes(most)
    if need > most:
        return (
            f"{request} in one piece is more than the limit of {limit}",
            ". No smaller batch of the other tensors helps, this one has to shrink.",
        )
    remaining = most - allocator.in_use_bytes
    if need > remaining:
        waste = allocator.wasted_bytes
        note = f" ({format_bytes(waste)} of them waste)" if waste else ""
        return (
            f"{format_bytes(allocator.in_use_bytes)} of {limit} are in use{note}, so "
            f"{request} more do not fit: {format_bytes(need - remaining)} are missing",
            ".",
        )
    remedy = "use the allocator cuda_malloc_async."
    if allocator.policy.growth:
        remedy = f"preallocate the pool (growth=False), or {remedy}"
    return (
        f"{remaining / most:.0%} of {limit} are free but no block above "
        f"{format_bytes(allocator.obtainable_bytes)}, so {request} in one piece "
        "are not to be had",
        f": {remedy}",
    )


class MemoryWatcher:
    """A recorder of every allocation and free of a simulated allocator.

    Args:
        allocator: a `BFCAllocator` that nobody has used yet.

    Attributes:
        refusal: why the last refused request was refused, in words; None if none was.

    Example:
        >>> from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
        >>> watcher = MemoryWatcher(BFCAllocator(PoolPolicy(limit_bytes=1 << 20)))
        >>> kernel = watcher.allocate(1000, holder="dense/kernel")
        >>> watcher.holders()
        {'dense/kernel': 1024}
    """

    def __init__(self, allocator: BFCAllocator) -> None:
        self.allocator = allocator
        self.refusal: str | None = None
        self._blocks: list[Block] = []
        self._freed_at: dict[int, int] = {}
        self._block_at: dict[int, int] = {}
        self._in_use: list[int] = []
        self._pool: list[int] = []
        self._fragmentation: list[float] = []

    def allocate(
        self,
        size: int,
        *,
        holder: str | None = None,
        category: str = "unknown",
        phase: str = "unknown",
        operation: str = "",
    ) -> int | None:
        """Return the address of `size` bytes, None if they are not to be had.

        Args:
            size: bytes, from 1.
            holder: who holds them, such as a layer's path.
            category: what they are for, one of `records.CATEGORIES`.
            phase: when they are asked for, one of `records.PHASES`.
            operation: who asks.

        Returns:
            The address, in bytes; None if the allocator refuses, which `refusal` then
            explains.

        Raises:
            ConfigError: if `size` is below 1.
        """
        address = self.allocator.allocate(size)
        if address is None:
            self.refusal = why_refused(self.allocator, size)
            return None
        chunk_bytes = self.allocator.chunk_at(address).size
        self._block_at[address] = len(self._blocks)
        self._blocks.append(
            Block(
                requested_bytes=size,
                given_bytes=chunk_bytes,
                address=address,
                allocated_at=len(self._in_use),
                freed_at=None,
                operation=operation,
                layer=holder,
                phase=phase,
                category=category,
            )
        )
        self._note()
        return address

    def free(self, address: int) -> None:
        """Give a block back.

        Args:
            address: where it begins, as `allocate` returned it.

        Raises:
            ConfigError: if no block in use begins at `address`.
        """
        self.allocator.free(address)
        self._freed_at[self._block_at.pop(address)] = len(self._in_use)
        self._note()

    def timeline(self) -> Timeline:
        """Return everything that was recorded; an event's time is its number.

        Returns:
            The `Timeline`, with `times_ns` counting events from 0.
        """
        return Timeline(
            allocator="simulated",
            source="simulation",
            first_step=0,
            steps=1,
            opening_bytes=0,
            times_ns=tuple(range(len(self._in_use))),
            in_use_bytes=tuple(self._in_use),
            reserved_bytes=tuple(self._pool),
            fragmentation=tuple(self._fragmentation),
            blocks=tuple(
                replace(block, freed_at=self._freed_at.get(number))
                for number, block in enumerate(self._blocks)
            ),
        )

    def holders(self) -> dict[str, int]:
        """Return the bytes given to each holder now, most first.

        Returns:
            Bytes, rounding included, by holder; `"nobody"` for blocks without one.
        """
        return _by_holder(self._blocks[number] for number in self._block_at.values())

    def holders_at_peak(self) -> dict[str, int]:
        """Return the bytes given to each holder at the peak, most first.

        Returns:
            As `holders`.
        """
        timeline = self.timeline()
        return _by_holder(timeline.live(timeline.peak_event))

    def _note(self) -> None:
        self._in_use.append(self.allocator.in_use_bytes)
        self._pool.append(self.allocator.pool_bytes)
        self._fragmentation.append(self.allocator.fragmentation)


def _by_holder(blocks: Iterable[Block]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for block in blocks:
        sums[block.layer or "nobody"] += block.given_bytes
    return dict(sums.most_common())


def save_timeline(timeline: Timeline, log_dir: str | os.PathLike[str]) -> Path:
    """Save a timeline of an allocator in the folder of a run.

    `kerasmem report LOG_DIR -o page.html` then draws what is in use over time, and the
    addresses.

    Args:
        timeline: recorded, of a `MemoryWatcher`, or of a `Replay`.
        log_dir: the folder; made if it is not there.

    Returns:
        The path of the file, `timeline-0000.json.gz` or the next number that is free.

    Raises:
        OSError: if the folder cannot be made; an `OutputError` if the file cannot be
            written.

    Example:
        >>> import tempfile
        >>> watcher = MemoryWatcher(BFCAllocator(PoolPolicy(limit_bytes=1 << 20)))
        >>> address = watcher.allocate(1000)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_timeline(watcher.timeline(), folder).name
        'timeline-0000.json.gz'
    """
    return add_timelines(Path(log_dir), [timeline])


def load_timelines(log_dir: str | os.PathLike[str]) -> tuple[Timeline, ...]:
    """Load the timelines in the folder of a run, such as `MemoryTimeline` writes.

    Args:
        log_dir: the folder.

    Returns:
        The timelines, one per allocator and plan, in the order of their files.

    Raises:
        InputError: if there is no such folder, or nothing of a run in it.

    Example:
        >>> import tempfile
        >>> watcher = MemoryWatcher(BFCAllocator(PoolPolicy(limit_bytes=1 << 20)))
        >>> address = watcher.allocate(1000)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_timeline(watcher.timeline(), folder)
        ...     load_timelines(folder)[0].peak_bytes
        1024
    """
    return read_run(Path(log_dir)).timelines


@dataclass(frozen=True)
class Replay:
    """The result of a replay: what became of a timeline under a policy.

    Args:
        timeline: what the simulated allocator did, the blocks in use at the opening
            allocated first; up to the refusal if there was one.
        refused: the block that was not to be had, None if all were.
        refusal: why it was not and what would help, in words; None if nothing was
            refused.

    Example:
        >>> watcher = MemoryWatcher(BFCAllocator(PoolPolicy(limit_bytes=4 << 20)))
        >>> addresses = [watcher.allocate(1 << 20) for _ in range(3)]
        >>> result = replay(watcher.timeline(), "8MiB")
        >>> type(result).__name__, result.fits, result.peak_bytes
        ('Replay', True, 3145728)
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
    """Replay the requests of a timeline in an allocator with another policy.

    The order of requests is the recorded one. A real run that is short of memory may
    wait for another operation to end, so a refusal here is a likely one, not a sure
    one.

    Args:
        timeline: a window that was recorded with every block (`folded` is 0).
        policy: limit and growth of the allocator to simulate; or the limit alone, in
            bytes or as a text such as `"8GiB"`, of a pool that grows.

    Returns:
        The `Replay`: the simulated timeline, and the request that was refused, if any.

    Raises:
        ConfigError: if blocks of the timeline were put together, or the policy is no
            size of at least 256 bytes.

    Example:
        >>> watcher = MemoryWatcher(BFCAllocator(PoolPolicy(limit_bytes=4 << 20)))
        >>> addresses = [watcher.allocate(1 << 20) for _ in range(3)]
        >>> replay(watcher.timeline(), "2MiB").fits
        False
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
    refusal = _run(timeline, watcher)
    new_timeline = replace(
        watcher.timeline(),
        allocator=f"{timeline.allocator}, in {format_bytes(policy.limit_bytes)}",
        first_step=timeline.first_step,
        steps=timeline.steps,
    )
    if refusal is None:
        return Replay(new_timeline, None, None)
    cause, _ = _refusal(watcher.allocator, refusal.requested_bytes)
    return Replay(new_timeline, refusal, f"{cause}. {_remedy(timeline, policy)}")


def _run(timeline: Timeline, watcher: MemoryWatcher) -> Block | None:
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
    if policy.growth and replay(timeline, replace(policy, growth=False)).fits:
        return "Preallocated (growth=False) everything fits."
    peak = now = 0
    for is_allocation, number in _operations(timeline.blocks):
        size = rounded(timeline.blocks[number].requested_bytes)
        now += size if is_allocation else -size
        peak = max(peak, now)
    if peak <= policy.most_bytes:
        return (
            f"The blocks themselves take at most {format_bytes(peak)} at once: the "
            "allocator cuda_malloc_async, which leaves fewer gaps, may fit them."
        )
    return (
        f"The blocks themselves take {format_bytes(peak)} at once, which no allocator "
        "fits in: make the batch smaller."
    )


def _operations(blocks: tuple[Block, ...]) -> Iterator[tuple[bool, int]]:
    for number, block in enumerate(blocks):
        if block.allocated_at is None:
            yield True, number
    events = [(b.allocated_at, True, n) for n, b in enumerate(blocks)]
    events += [(b.freed_at, False, n) for n, b in enumerate(blocks)]
    for _, is_allocation, number in sorted(e for e in events if e[0] is not None):
        yield is_allocation, number
