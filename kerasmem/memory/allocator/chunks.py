"""Neighboring memory chunks, and a best-fit free list."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass


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
