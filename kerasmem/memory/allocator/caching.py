"""Allocators, simulated: torch's for CUDA, and one that only rounds."""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Protocol

from kerasmem.units import MIB

_ROUNDING = 512
_SMALL = 1 * MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE = 10 * MIB
_LARGE_SEGMENT = 20 * MIB
_SEGMENT_ROUNDING = 2 * MIB


class Allocator(Protocol):
    """What gives memory and takes it back."""

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the blocks in use, as they were given."""
        ...

    @property
    def pool_bytes(self) -> int:
        """Bytes taken from the device."""
        ...

    def allocate(self, size: int) -> int | None:
        """Return the address of `size` bytes, from 1; None if there is no room."""
        ...

    def free(self, address: int) -> None:
        """Take a block back."""
        ...


class RoundingAllocator:
    """Counts blocks rounded up to a multiple; more bytes never make its sum lower."""

    def __init__(self, rounding: int) -> None:
        self.in_use_bytes = self.pool_bytes = 0
        self._rounding = rounding
        self._sizes: dict[int, int] = {}
        self._next = 0

    def allocate(self, size: int) -> int:
        """Return a number for the block."""
        self._next += 1
        size = self._sizes[self._next] = -(-size // self._rounding) * self._rounding
        self.in_use_bytes += size
        self.pool_bytes = max(self.pool_bytes, self.in_use_bytes)
        return self._next

    def free(self, address: int) -> None:
        """Take a block back."""
        self.in_use_bytes -= self._sizes.pop(address)


@dataclass(eq=False)
class _Block:
    address: int
    size: int
    small: bool
    before: "_Block | None" = None
    after: "_Block | None" = None
    is_free: bool = True


class CachingAllocator:
    """Gives out addresses by the rules of torch's allocator; no memory is touched.

    Requests up to 1 MiB come out of segments of 2 MiB, those below 10 MiB out of
    segments of 20 MiB, larger ones out of segments of their own; the smallest free
    block that is large enough is taken, and split if enough is left.

    Attributes:
        in_use_bytes: bytes of the blocks in use (`allocated_bytes`).
        pool_bytes: bytes of all segments (`reserved_bytes`).
    """

    def __init__(self) -> None:
        self.in_use_bytes = 0
        self.pool_bytes = 0
        self._next_address = _ROUNDING
        self._in_use: dict[int, _Block] = {}
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes, from 1."""
        need = -(-size // _ROUNDING) * _ROUNDING
        small = need <= _SMALL
        found = bisect_left(self._free[small], (need, 0))
        if found == len(self._free[small]):
            self._add_segment(need, small)
            found = bisect_left(self._free[small], (need, 0))
        block = self._blocks.pop(self._free[small].pop(found))
        self._split(block, need)
        block.is_free = False
        self._in_use[block.address] = block
        self.in_use_bytes += block.size
        return block.address

    def free(self, address: int) -> None:
        """Give a block back; it merges with its free neighbors."""
        block = self._in_use.pop(address)
        self.in_use_bytes -= block.size
        block.is_free = True
        if block.after is not None and block.after.is_free:
            self._take_out(block.after)
            _absorb_next(block)
        if block.before is not None and block.before.is_free:
            block = block.before
            self._take_out(block)
            _absorb_next(block)
        self._put_in(block)

    def _add_segment(self, need: int, small: bool) -> None:  # noqa: FBT001
        size = -(-need // _SEGMENT_ROUNDING) * _SEGMENT_ROUNDING
        if small:
            size = _SMALL_SEGMENT
        elif need < _LARGE:
            size = _LARGE_SEGMENT
        self.pool_bytes += size
        self._put_in(_Block(self._next_address, size, small))
        self._next_address += size + _ROUNDING

    def _split(self, block: _Block, need: int) -> None:
        left = block.size - need
        if left < _ROUNDING or (not block.small and left <= _SMALL):
            return
        rest = _Block(block.address + need, left, block.small, block, block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = need, rest
        self._put_in(rest)

    def _put_in(self, block: _Block) -> None:
        key = (block.size, block.address)
        self._blocks[key] = block
        insort(self._free[block.small], key)

    def _take_out(self, block: _Block) -> None:
        key = (block.size, block.address)
        del self._blocks[key]
        keys = self._free[block.small]
        del keys[bisect_left(keys, key)]


def _absorb_next(block: _Block) -> None:
    absorbed = block.after
    if absorbed is None:
        return
    block.size += absorbed.size
    block.after = absorbed.after
    if absorbed.after is not None:
        absorbed.after.before = block
