"""Recording of an allocator, and explanation of failed requests."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from kerasmem.memory.allocator.bfc import BFCAllocator, rounded
from kerasmem.records import Block, Timeline
from kerasmem.units import format_bytes


def why_refused(allocator: BFCAllocator, size: int) -> str:
    """Explain why an allocation failed: request size, limit or fragmentation.

    Args:
        allocator: A `BFCAllocator` in its state after the failure.
        size: Integer, at least 1. Requested bytes.

    Returns:
        A text with the cause and, if available, a remedy.

    Example:
        >>> from kerasmem.memory.allocator import PoolPolicy
        >>> allocator = BFCAllocator(PoolPolicy(limit_bytes=1 << 20))
        >>> print(why_refused(allocator, 2 << 20).partition(". ")[0])
        The request of 2.00 MiB exceeds the limit of 1.00 MiB
    """
    need, most = rounded(size), allocator.policy.limit_bytes
    request, limit = format_bytes(size), format_bytes(most)
    if need > most:
        return (
            f"The request of {request} exceeds the limit of {limit}. Next: make this "
            "tensor smaller; freeing other tensors does not help."
        )
    remaining = most - allocator.in_use_bytes
    if need > remaining:
        waste = allocator.wasted_bytes
        note = f" ({format_bytes(waste)} of it wasted)" if waste else ""
        return (
            f"{format_bytes(allocator.in_use_bytes)} of {limit} is in use{note}, so "
            f"{request} more does not fit: {format_bytes(need - remaining)} is missing."
        )
    remedy = "use the allocator cuda_malloc_async."
    if allocator.policy.growth:
        remedy = f"preallocate the pool (growth=False), or {remedy}"
    return (
        f"{remaining / most:.0%} of {limit} is free, but the largest block is "
        f"{format_bytes(allocator.obtainable_bytes)}, so a block of {request} "
        f"cannot be allocated. Next: {remedy}"
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
