"""Recording and replay of an allocator, and explanation of failed requests."""

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
    """Explain why an allocation failed: request size, limit or fragmentation.

    Args:
        allocator: A `BFCAllocator` in its state after the failure.
        size: Integer, at least 1. Requested bytes.

    Returns:
        A text with the cause and, if available, a remedy.

    Example:
        >>> allocator = BFCAllocator(PoolPolicy(limit_bytes=1 << 20))
        >>> print(why_refused(allocator, 2 << 20).partition(". ")[0])
        The request of 2.00 MiB exceeds the limit of 1.00 MiB
    """
    cause, remedy = _refusal(allocator, size)
    return f"{cause}{remedy}"


def _refusal(allocator: BFCAllocator, size: int) -> tuple[str, str]:
    need, most = rounded(size), allocator.policy.most_bytes
    request, limit = format_bytes(size), format_bytes(most)
    if need > most:
        return (
            f"The request of {request} exceeds the limit of {limit}",
            ". Next: make this tensor smaller; freeing other tensors does not help.",
        )
    remaining = most - allocator.in_use_bytes
    if need > remaining:
        waste = allocator.wasted_bytes
        note = f" ({format_bytes(waste)} of it wasted)" if waste else ""
        return (
            f"{format_bytes(allocator.in_use_bytes)} of {limit} is in use{note}, so "
            f"{request} more does not fit: {format_bytes(need - remaining)} is missing",
            ".",
        )
    remedy = "use the allocator cuda_malloc_async."
    if allocator.policy.growth:
        remedy = f"preallocate the pool (growth=False), or {remedy}"
    return (
        f"{remaining / most:.0%} of {limit} is free, but the largest block is "
        f"{format_bytes(allocator.obtainable_bytes)}, so a block of {request} "
        "cannot be allocated",
        f". Next: {remedy}",
    )


class MemoryWatcher:
    """A recorder of all allocations of a simulated allocator.

    Args:
        allocator: An unused `BFCAllocator`.

    Attributes:
        refusal: Explanation of the last failed allocation, or None.

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
        """Allocate a block and record it.

        Args:
            size: Integer, at least 1. Number of bytes.
            holder: Owner of the block, such as a layer path. Defaults to None.
            category: One of `records.CATEGORIES`. Defaults to `"unknown"`.
            phase: One of `records.PHASES`. Defaults to `"unknown"`.
            operation: Name of the operation. Defaults to `""`.

        Returns:
            The address in bytes. None if the allocation fails; `refusal` then has the
            explanation.

        Raises:
            ConfigError: If `size` is below 1.
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
        """Free a block.

        Args:
            address: Integer. Address from `allocate`.

        Raises:
            ConfigError: If no used block starts at `address`.
        """
        self.allocator.free(address)
        self._freed_at[self._block_at.pop(address)] = len(self._in_use)
        self._note()

    def timeline(self) -> Timeline:
        """Return the recorded timeline. The time of an event is its index.

        Returns:
            A `Timeline` whose `times_ns` are event indices from 0.
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
        """Return the current bytes of each holder, largest first.

        Returns:
            Dictionary from holder to bytes, including rounding. Blocks without a holder
            count for `"nobody"`.
        """
        return _by_holder(self._blocks[number] for number in self._block_at.values())

    def holders_at_peak(self) -> dict[str, int]:
        """Return the bytes of each holder at the peak, largest first.

        Returns:
            Dictionary from holder to bytes, as for `holders`.
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
    """Save an allocator timeline to the folder of a run.

    `kerasmem report LOG_DIR -o page.html` plots the use over time and the addresses.

    Args:
        timeline: A `Timeline` from `MemoryTimeline`, `MemoryWatcher` or `Replay`.
        log_dir: Folder of the run, created if missing.

    Returns:
        Path of the file: `timeline-0000.json.gz`, or the next free number.

    Raises:
        OSError: If the folder cannot be created. `OutputError` if the file cannot be
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
    """Load the timelines in the folder of a run, for example from `MemoryTimeline`.

    Args:
        log_dir: Folder of the run.

    Returns:
        Tuple of `Timeline`, one per allocator and plan, in the order of the files.

    Raises:
        InputError: If the folder does not exist or contains no run.

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
    """The result of a replay of a timeline with another policy.

    Args:
        timeline: The simulated `Timeline`, up to a failed allocation. Blocks that were
            already in use at the start of the recording are allocated first.
        refused: The `Block` whose allocation failed, or None.
        refusal: Explanation of the failure with a remedy, or None.

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
        """Whether all allocations succeeded."""
        return self.refused is None

    @property
    def peak_bytes(self) -> int:
        """Peak bytes in use."""
        return self.timeline.peak_bytes

    @property
    def pool_bytes(self) -> int:
        """Peak bytes that the pool took from the device."""
        return max(self.timeline.reserved_bytes, default=0)


def replay(timeline: Timeline, policy: PoolPolicy | int | str) -> Replay:
    """Replay the requests of a timeline with another allocator policy.

    Requests have the recorded order. In a real run, an allocator that is short of
    memory may wait for another operation to end. A failure here is therefore likely,
    but not certain.

    Args:
        timeline: A `Timeline` with every block (`folded` is 0).
        policy: A `PoolPolicy`, or only the limit of a growing pool, in bytes or as a
            string such as `"8GiB"`.

    Returns:
        A `Replay` with the simulated timeline and the failed request, if any.

    Raises:
        ConfigError: If blocks of the timeline were merged, or if the policy is not a
            size of at least 256 bytes.

    Example:
        >>> watcher = MemoryWatcher(BFCAllocator(PoolPolicy(limit_bytes=4 << 20)))
        >>> addresses = [watcher.allocate(1 << 20) for _ in range(3)]
        >>> replay(watcher.timeline(), "2MiB").fits
        False
    """
    if timeline.folded:
        raise ConfigError(
            "Blocks of this timeline were merged to keep its file small, so they "
            "cannot be replayed. Expected: folded=0. Received: folded="
            f"{timeline.folded}. Next: record fewer steps."
        )
    if not isinstance(policy, PoolPolicy):
        policy = PoolPolicy(limit_bytes=parse_bytes(policy, "replay", "policy"))
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
        return "With preallocation (growth=False), all blocks fit."
    peak = now = 0
    for is_allocation, number in _operations(timeline.blocks):
        size = rounded(timeline.blocks[number].requested_bytes)
        now += size if is_allocation else -size
        peak = max(peak, now)
    if peak <= policy.most_bytes:
        return (
            f"The blocks need at most {format_bytes(peak)} at once. Next: try "
            "cuda_malloc_async, an allocator with less fragmentation."
        )
    return (
        f"The blocks need {format_bytes(peak)} at once, so they fit with no "
        "allocator. Next: use a smaller batch."
    )


def _operations(blocks: tuple[Block, ...]) -> Iterator[tuple[bool, int]]:
    for number, block in enumerate(blocks):
        if block.allocated_at is None:
            yield True, number
    events = [(b.allocated_at, True, n) for n, b in enumerate(blocks)]
    events += [(b.freed_at, False, n) for n, b in enumerate(blocks)]
    for _, is_allocation, number in sorted(e for e in events if e[0] is not None):
        yield is_allocation, number
