"""Arrays over memory-mapped files."""

import mmap
from collections.abc import Iterator

import numpy as np

_READ_AROUND = 2 << 20
"""Maximum bytes before and after an accessed page that the system may also map."""


class MappedArray(np.ndarray):
    """An array over a file, whose pages are read on access."""

    _region: tuple[mmap.mmap, int] | None = None
    name: str | None = None
    """Path of the array in the file, if set. Slices have None."""

    @classmethod
    def of(
        cls, file: mmap.mmap, start: int, shape: tuple[int, ...], dtype: np.dtype
    ) -> "MappedArray":
        """Return the array at the byte `start` of a file."""
        count = int(np.prod(shape, dtype=np.int64))
        entries = np.frombuffer(file, np.uint8, count * dtype.itemsize, start)
        array = entries.view(dtype).reshape(shape).view(cls)
        array._region = (file, start)
        return array

    @property
    def place(self) -> int | None:
        """Offset in the file in bytes, or None for an array in memory."""
        return None if self._region is None else self._region[1]

    def aligned(self) -> np.ndarray:
        """Return an aligned array, copied if necessary."""
        plain = self.view(np.ndarray)
        return plain if plain.flags.aligned else plain.copy()

    def release(self) -> None:
        """Free the pages of the array. The next access reads them again."""
        self._release(self._region and self._region[1], self.nbytes)

    def release_around(self, start: int = 0, stop: int | None = None) -> None:
        """Free the pages of entries and the pages that the system read around them."""
        if self._region is None:
            return
        file, place = self._region
        first = max(place + start * self.itemsize - _READ_AROUND, 0)
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        end = place + (self.size if stop is None else stop) * self.itemsize
        self._release(first, min(end + _READ_AROUND, len(file)) - first)

    def pieces(self, size: int) -> Iterator[np.ndarray]:
        """Yield 1D copies of at most `size` consecutive entries, and free the pages."""
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
