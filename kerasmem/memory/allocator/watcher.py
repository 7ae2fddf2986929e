"""A simulated allocator with a memory of who holds what."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from kerasmem.memory.allocator.advice import why_refused
from kerasmem.memory.allocator.bfc import BFCAllocator
from kerasmem.records import Block, Timeline


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
