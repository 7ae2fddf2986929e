"""Watching a live allocator, and why it refused a request."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from kerasmem.memory.allocator.bfc import BFCAllocator
from kerasmem.memory.allocator.pool import rounded
from kerasmem.records import Block, Timeline
from kerasmem.units import format_bytes


def why_refused(allocator: BFCAllocator, size: int) -> str:
    """Return one or two sentences on why `size` bytes are not to be had.

    Args:
        allocator: as it was when it refused.
        size: bytes asked for.
    """
    cause, most = cause_of(allocator, size), allocator.policy.most_bytes
    if rounded(size) > most:
        return (
            f"{cause} No smaller batch of the other tensors helps, this one has to "
            "shrink."
        )
    if rounded(size) > most - allocator.in_use_bytes:
        return cause
    remedy = "use the allocator cuda_malloc_async."
    if allocator.policy.growth:
        remedy = f"preallocate the pool (growth=False), or {remedy}"
    return f"{cause.removesuffix('.')}: {remedy}"


def cause_of(allocator: BFCAllocator, size: int) -> str:
    """Return why `size` bytes are not to be had, without what would help."""
    need, most = rounded(size), allocator.policy.most_bytes
    asked, limit = format_bytes(size), format_bytes(most)
    if need > most:
        return f"{asked} in one piece is more than the limit of {limit}."
    left = most - allocator.in_use_bytes
    if need > left:
        waste = allocator.wasted_bytes
        told = f" ({format_bytes(waste)} of them waste)" if waste else ""
        return (
            f"{format_bytes(allocator.in_use_bytes)} of {limit} are in use{told}, so "
            f"{asked} more do not fit: {format_bytes(need - left)} are missing."
        )
    return (
        f"{left / most:.0%} of {limit} are free but no block above "
        f"{format_bytes(allocator.obtainable_bytes)}, so {asked} in one piece are not "
        "to be had."
    )


class MemoryWatcher:
    """Records every allocation and free made through it.

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
        """
        address = self.allocator.allocate(size)
        if address is None:
            self.refusal = why_refused(self.allocator, size)
            return None
        given = self.allocator.chunk_at(address).size
        self._block_at[address] = len(self._blocks)
        self._blocks.append(
            Block(
                requested_bytes=size,
                given_bytes=given,
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
        """Give a block back."""
        self.allocator.free(address)
        self._freed_at[self._block_at.pop(address)] = len(self._in_use)
        self._note()

    def timeline(self) -> Timeline:
        """Return everything that was recorded; an event's time is its number."""
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
        """Return the bytes given to each holder now, most first."""
        return _by_holder(self._blocks[number] for number in self._block_at.values())

    def holders_at_peak(self) -> dict[str, int]:
        """Return the bytes given to each holder at the peak, most first."""
        timeline = self.timeline()
        return _by_holder(timeline.alive(timeline.peak_event))

    def _note(self) -> None:
        self._in_use.append(self.allocator.in_use_bytes)
        self._pool.append(self.allocator.pool_bytes)
        self._fragmentation.append(self.allocator.fragmentation)


def _by_holder(blocks: Iterable[Block]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for block in blocks:
        sums[block.layer or "nobody"] += block.given_bytes
    return dict(sums.most_common())
