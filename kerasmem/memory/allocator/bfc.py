"""A simulator of TensorFlow's BFC (best fit with coalescing) allocator.

It reproduces the rules of `tsl::BFCAllocator` in TensorFlow 2.21, the allocator of a
GPU (`GPU_0_bfc`). A test compares every address for random requests. Not simulated are
the wait for another thread to free memory, and timestamps that delay the reuse of
chunks, which only virtual devices have.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from kerasmem.checks import Checked, Whole, invalid
from kerasmem.units import MIB

ROUNDING = 256
"""The size of every chunk is a multiple of this number of bytes."""

WHOLE_CHUNK_WASTE = 128 * MIB
"""A chunk is always split if it exceeds the request by this number of bytes."""

_FIRST_REGION = 2 * MIB
_GAP = ROUNDING  # gap between regions, so that they never merge


def rounded(size: int) -> int:
    """Return `size` rounded up to a multiple of 256 bytes.

    Example:
        >>> rounded(1), rounded(256), rounded(257)
        (256, 256, 512)
    """
    return -(-size // ROUNDING) * ROUNDING


@dataclass(frozen=True, kw_only=True)
class PoolPolicy(Checked):
    """The limit and growth policy of a memory pool.

    Args:
        limit_bytes: Integer, at least 256. Maximum size of the pool in bytes.
        growth: Boolean. Whether the pool starts small and grows by doubling regions. If
            False, the pool takes the whole limit at the first request (TensorFlow's
            default on GPUs). Defaults to True.

    Raises:
        ConfigError: If a value is out of range.

    Example:
        >>> PoolPolicy(limit_bytes=4 << 20).growth
        True
    """

    limit_bytes: Annotated[int, Whole(ROUNDING)]
    growth: bool = True


@dataclass(slots=True, eq=False)
class Chunk:
    """A used or free chunk of memory in a region.

    Args:
        address: Integer. Start address.
        size: Integer. Size in bytes.
        requested: Integer. Requested bytes, 0 if the chunk is free.
        previous: Previous chunk in the region, or None.
        next: Next chunk in the region, or None.

    Example:
        >>> behind = Chunk(address=512, size=256)
        >>> chunk = Chunk(address=256, size=256, requested=100, next=behind)
        >>> [(each.address, each.is_free) for each in chunk.onward()]
        [(256, False), (512, True)]
    """

    address: int
    size: int
    requested: int = 0
    previous: "Chunk | None" = None
    next: "Chunk | None" = None

    @property
    def is_free(self) -> bool:
        """Whether the chunk is free."""
        return self.requested == 0

    def onward(self) -> Iterator["Chunk"]:
        """Yield this chunk and the later chunks in the region.

        Returns:
            An iterator over `Chunk` objects, ordered by address.
        """
        chunk: Chunk | None = self
        while chunk is not None:
            yield chunk
            chunk = chunk.next


class FreeList:
    """Free chunks, ordered by size and address.

    TensorFlow uses 21 bins. Each bin is a range of sizes, so the smallest chunk that
    fits is the same without bins.
    """

    def __init__(self) -> None:
        self._ordered: list[tuple[int, int]] = []
        self._chunks: dict[int, Chunk] = {}

    def add(self, chunk: Chunk) -> None:
        """Add a free chunk."""
        insort(self._ordered, (chunk.size, chunk.address))
        self._chunks[chunk.address] = chunk

    def remove(self, chunk: Chunk) -> None:
        """Remove a chunk."""
        del self._ordered[bisect_left(self._ordered, (chunk.size, chunk.address))]
        del self._chunks[chunk.address]

    def smallest(self, size: int) -> Chunk | None:
        """Return the smallest chunk that fits, with the lowest address."""
        place = bisect_left(self._ordered, (size, 0))
        if place == len(self._ordered):
            return None
        return self._chunks[self._ordered[place][1]]

    @property
    def largest_bytes(self) -> int:
        """Size of the largest chunk, 0 if the list is empty."""
        return self._ordered[-1][0] if self._ordered else 0

    def split(self, chunk: Chunk, size: int) -> None:
        """Reduce a chunk to `size` bytes and add the rest as a free chunk."""
        behind = chunk.next
        rest = Chunk(
            chunk.address + size, chunk.size - size, previous=chunk, next=behind
        )
        if behind is not None:
            behind.previous = rest
        chunk.size, chunk.next = size, rest
        self.add(rest)

    def give_back(self, chunk: Chunk) -> None:
        """Add a chunk that was in use, merged with its free neighbors."""
        chunk.requested = 0
        before, behind = chunk.previous, chunk.next
        if behind is not None and behind.is_free:
            self.remove(behind)
            _absorb(chunk, behind)
        if before is not None and before.is_free:
            self.remove(before)
            _absorb(before, chunk)
            chunk = before
        self.add(chunk)


def _absorb(chunk: Chunk, behind: Chunk) -> None:
    chunk.size += behind.size
    chunk.next = behind.next
    if behind.next is not None:
        behind.next.previous = chunk


class BFCAllocator:
    """A simulator of TensorFlow's BFC (best fit with coalescing) allocator.

    Returns the same addresses as TensorFlow, without allocating memory.

    Args:
        policy: A `PoolPolicy` with the limit and growth of the pool.

    Attributes:
        in_use_bytes: Bytes of the used chunks, including rounding and waste.
        peak_bytes: Peak of `in_use_bytes` since the start.
        pool_bytes: Bytes taken from the device.

    Example:
        >>> allocator = BFCAllocator(PoolPolicy(limit_bytes=4 << 20))
        >>> address = allocator.allocate(1000)
        >>> allocator.in_use_bytes, allocator.pool_bytes
        (1024, 2097152)
        >>> allocator.free(address)
        >>> allocator.in_use_bytes, allocator.peak_bytes
        (0, 1024)
    """

    def __init__(self, policy: PoolPolicy) -> None:
        self.policy = policy
        self.in_use_bytes = 0
        self.peak_bytes = 0
        self.pool_bytes = 0
        first = min(policy.limit_bytes, _FIRST_REGION)
        self._region_bytes = rounded(first if policy.growth else policy.limit_bytes)
        self._next_address = _GAP
        self._regions: list[Chunk] = []  # the first chunk of each
        self._in_use: dict[int, Chunk] = {}
        self._free = FreeList()

    def allocate(self, size: int) -> int | None:
        """Allocate a block.

        Args:
            size: Integer, at least 1. Number of bytes.

        Returns:
            The address in bytes, or None if the allocation fails.

        Raises:
            ConfigError: If `size` is below 1.
        """
        if size < 1:
            raise invalid("allocate", "size", size, "at least 1 byte")
        need = rounded(size)
        chunk = self._free.smallest(need)
        if chunk is None and (self._extend(need) or self._collect_and_extend(need)):
            chunk = self._free.smallest(need)
        return None if chunk is None else self._take(chunk, size, need)

    def free(self, address: int) -> None:
        """Free a chunk.

        Args:
            address: Integer. Address from `allocate`.

        Raises:
            ConfigError: If no used chunk starts at `address`.
        """
        chunk = self._in_use.pop(address, None)
        if chunk is None:
            raise invalid("free", "address", address, "the start of a chunk in use")
        self.in_use_bytes -= chunk.size
        self._free.give_back(chunk)

    def chunk_at(self, address: int) -> Chunk:
        """Return the used chunk at an address.

        Args:
            address: Integer. Address from `allocate`.

        Returns:
            The `Chunk`.

        Raises:
            KeyError: If no used chunk starts at `address`.
        """
        return self._in_use[address]

    def chunks(self) -> Iterator[Chunk]:
        """Yield all chunks, used and free, by region.

        Returns:
            An iterator over `Chunk` objects, ordered by address.
        """
        for region in self._regions:
            yield from region.onward()

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest free chunk in the pool, in bytes."""
        return self._free.largest_bytes

    @property
    def obtainable_bytes(self) -> int:
        """Size of the largest block that a request could get now, in bytes."""
        idle_bytes = sum(region.size for region in self._idle_regions())
        busy_bytes = self.pool_bytes - idle_bytes
        room = (self.policy.limit_bytes - busy_bytes) // ROUNDING * ROUNDING
        return max(self.largest_free_bytes, room)

    @property
    def wasted_bytes(self) -> int:
        """Used bytes beyond the requests: rounding, and chunks that were not split."""
        return sum(chunk.size - chunk.requested for chunk in self._in_use.values())

    @property
    def fragmentation(self) -> float:
        """Fraction of the free bytes outside the largest free chunk."""
        free = self.pool_bytes - self.in_use_bytes
        return (free - self.largest_free_bytes) / free if free else 0.0

    def _take(self, chunk: Chunk, size: int, need: int) -> int:
        self._free.remove(chunk)
        if chunk.size >= 2 * need or chunk.size - need >= WHOLE_CHUNK_WASTE:
            self._free.split(chunk, need)
        chunk.requested = size
        self._in_use[chunk.address] = chunk
        self.in_use_bytes += chunk.size
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
        return chunk.address

    def _extend(self, need: int) -> bool:
        available = (self.policy.limit_bytes - self.pool_bytes) // ROUNDING * ROUNDING
        if need > available:
            return False
        has_doubled = need > self._region_bytes
        while need > self._region_bytes:
            self._region_bytes *= 2
        size = min(self._region_bytes, available)
        if not has_doubled:
            self._region_bytes *= 2
        chunk = Chunk(self._next_address, size)
        self._regions.append(chunk)
        self._next_address += size + _GAP
        self.pool_bytes += size
        self._free.add(chunk)
        return True

    def _collect_and_extend(self, need: int) -> bool:
        idle = self._idle_regions()
        idle_bytes = sum(region.size for region in idle)
        if not idle or need > self.policy.limit_bytes - self.pool_bytes + idle_bytes:
            return False
        for region in idle:
            self._free.remove(region)
        self._regions = [r for r in self._regions if r not in idle]
        self.pool_bytes -= idle_bytes
        return self._extend(need)

    def _idle_regions(self) -> list[Chunk]:
        # Free neighbors are merged, so an idle region has exactly one chunk.
        return [c for c in self._regions if c.is_free and c.next is None]
