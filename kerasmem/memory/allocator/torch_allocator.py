"""Simulators of torch's CUDA allocator and of a rounding allocator."""

from kerasmem.memory.allocator.bfc import BFCAllocator
from kerasmem.memory.allocator.chunks import Chunk, FreeList
from kerasmem.units import MIB

_ROUNDING = 512
_SMALL = 1 * MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE = 10 * MIB
_LARGE_SEGMENT = 20 * MIB
_SEGMENT_ROUNDING = 2 * MIB


class RoundingAllocator:
    """Counts blocks rounded up to a multiple, so more bytes never reduce the sum."""

    def __init__(self, rounding: int) -> None:
        self.in_use_bytes = self.pool_bytes = 0
        self._rounding = rounding
        self._sizes: dict[int, int] = {}
        self._next = 0

    def allocate(self, size: int) -> int:
        """Allocate a block and return its number."""
        self._next += 1
        size = self._sizes[self._next] = -(-size // self._rounding) * self._rounding
        self.in_use_bytes += size
        self.pool_bytes = max(self.pool_bytes, self.in_use_bytes)
        return self._next

    def free(self, address: int) -> None:
        """Free a block."""
        self.in_use_bytes -= self._sizes.pop(address)


class CachingAllocator:
    """Computes addresses by the rules of torch's caching allocator.

    Requests up to 1 MiB use segments of 2 MiB, requests below 10 MiB use segments of 20
    MiB, and larger requests have separate segments. The smallest free chunk that fits
    is split if the rest is large enough.
    """

    def __init__(self) -> None:
        self.in_use_bytes = 0
        self.pool_bytes = 0
        self._next_address = _ROUNDING
        self._in_use: dict[int, tuple[Chunk, bool]] = {}
        self._free = {True: FreeList(), False: FreeList()}  # key: whether it is small

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes, at least 1, and return the address."""
        need = -(-size // _ROUNDING) * _ROUNDING
        is_small = need <= _SMALL
        free = self._free[is_small]
        chunk = free.smallest(need) or self._added_segment(need, free, is_small)
        free.remove(chunk)
        rest = chunk.size - need
        if rest >= _ROUNDING and (is_small or rest > _SMALL):
            free.split(chunk, need)
        chunk.requested = size
        self._in_use[chunk.address] = chunk, is_small
        self.in_use_bytes += chunk.size
        return chunk.address

    def free(self, address: int) -> None:
        """Free a chunk and merge it with its free neighbors."""
        chunk, is_small = self._in_use.pop(address)
        self.in_use_bytes -= chunk.size
        self._free[is_small].give_back(chunk)

    def _added_segment(self, need: int, free: FreeList, is_small: bool) -> Chunk:  # noqa: FBT001
        size = -(-need // _SEGMENT_ROUNDING) * _SEGMENT_ROUNDING
        if is_small:
            size = _SMALL_SEGMENT
        elif need < _LARGE:
            size = _LARGE_SEGMENT
        chunk = Chunk(self._next_address, size)
        self.pool_bytes += size
        self._next_address += size + _ROUNDING
        free.add(chunk)
        return chunk


Allocator = BFCAllocator | CachingAllocator | RoundingAllocator
"""An allocator with `allocate(size)` and `free(address)`."""
