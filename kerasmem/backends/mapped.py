"""Arrays over a file, whose pages come and go."""

import mmap
from collections.abc import Iterator

import numpy as np

_READ_AROUND = 2 << 20
"""So many bytes before and behind it a system may map with a page that is looked at."""


class MappedArray(np.ndarray):
    """An array over a file, whose pages are read when they are looked at."""

    _region: tuple[mmap.mmap, int] | None = None
    name: str | None = None
    """Its path in the file, where somebody noted it. A part of it has none."""

    @classmethod
    def of(
        cls, file: mmap.mmap, start: int, shape: tuple[int, ...], dtype: np.dtype
    ) -> "MappedArray":
        """Return the array that begins at the byte `start` of a file.

        Raises:
            ValueError: if the file ends before it does.
        """
        count = int(np.prod(shape, dtype=np.int64))
        entries = np.frombuffer(file, np.uint8, count * dtype.itemsize, start)
        array = entries.view(dtype).reshape(shape).view(cls)
        array._region = (file, start)
        return array

    @property
    def place(self) -> int | None:
        """The byte of the file where it begins, None if the file has nothing of it."""
        return None if self._region is None else self._region[1]

    def aligned(self) -> np.ndarray:
        """Return an array whose entries lie where a framework takes them."""
        plain = self.view(np.ndarray)
        return plain if plain.flags.aligned else plain.copy()

    def release(self) -> None:
        """Give back the memory of its pages; looked at again, they are read again."""
        self._release(self._region and self._region[1], self.nbytes)

    def release_around(self, start: int = 0, stop: int | None = None) -> None:
        """Give back pages of entries, with those that the system read beside them.

        Args:
            start: the first entry.
            stop: the one behind the last; None for all.
        """
        if self._region is None:
            return
        file, place = self._region
        first = max(place + start * self.itemsize - _READ_AROUND, 0)
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        end = place + (self.size if stop is None else stop) * self.itemsize
        self._release(first, min(end + _READ_AROUND, len(file)) - first)

    def pieces(self, size: int) -> Iterator[np.ndarray]:
        """Yield all entries in order, in copies of one axis; no page stays in memory.

        Args:
            size: most entries of a piece.
        """
        entries = self.view(np.ndarray).reshape(-1)
        for start in range(0, self.size, size):
            piece = entries[start : start + size].copy()
            self.release_around(start, start + piece.size)
            yield piece

    def _release(self, start: int | None, size: int) -> None:
        if self._region is None or start is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        file, _ = self._region
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (start + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0:
            file.madvise(mmap.MADV_DONTNEED, first, length)
