"""Chunks of memory side by side, and a free list that finds the best fit."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Chunk:
    """A chunk of memory in a region, in use or free.

    Args:
        address: where it begins.
        size: its length in bytes.
        requested: bytes that were asked for, 0 while it is free.
        previous: the chunk before it in the region, None for the first.
        next: the chunk behind it in the region, None for the last.

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
        """Whether nobody holds the chunk."""
        return self.requested == 0

    def onward(self) -> Iterator["Chunk"]:
        """Yield this chunk and those behind it in the region.

        Returns:
            An iterator over chunks, by address.
        """
        chunk: Chunk | None = self
        while chunk is not None:
            yield chunk
            chunk = chunk.next


class FreeList:
    """Free chunks by size, of equal ones by address.

    TensorFlow keeps them in 21 bins. Each bin is a range of sizes, so the smallest
    chunk that fits is the same without them.
    """

    def __init__(self) -> None:
        self._ordered: list[tuple[int, int]] = []
        self._chunks: dict[int, Chunk] = {}

    def add(self, chunk: Chunk) -> None:
        """Add a free chunk."""
        insort(self._ordered, (chunk.size, chunk.address))
        self._chunks[chunk.address] = chunk

    def remove(self, chunk: Chunk) -> None:
        """Take a chunk out."""
        del self._ordered[bisect_left(self._ordered, (chunk.size, chunk.address))]
        del self._chunks[chunk.address]

    def smallest(self, size: int) -> Chunk | None:
        """Return the smallest chunk of at least `size` bytes, of these the lowest."""
        place = bisect_left(self._ordered, (size, 0))
        if place == len(self._ordered):
            return None
        return self._chunks[self._ordered[place][1]]

    @property
    def largest_bytes(self) -> int:
        """Size of the largest chunk, 0 if there is none."""
        return self._ordered[-1][0] if self._ordered else 0

    def split(self, chunk: Chunk, size: int) -> None:
        """Cut a chunk down to `size` bytes; the rest behind it is free."""
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
