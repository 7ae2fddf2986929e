"""Arrays that are read in pieces, and work on them that threads do ahead."""

import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from kerasmem.backends.mapped import MappedArray
from kerasmem.files.archive import read_at
from kerasmem.stages import Progress

_MOST_THREADS = 8

_AHEAD = 16
"""Pieces that wait to be used. The same on every machine: what is written of them lies
in a file in the order in which they are used, between whatever else is written."""


class Threads:
    """A scope of work that NumPy or a codec does, without Python's lock.

    At its end all of it is done; after an error what had not begun never is.

    Args:
        ahead: most results that wait to be used, with what they are made of.
    """

    def __init__(self, ahead: int = _AHEAD) -> None:
        self._ahead = ahead
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS))
        self._waiting: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()

    def __enter__(self) -> "Threads":
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self._waiting.clear()
            self._pool.shutdown(cancel_futures=True)

    def run(
        self, function: Callable[..., Any], *args: Any, then: Callable[[Any], None]
    ) -> None:
        """Call a function on another thread, and use its result on this one, later.

        Args:
            function: called with `args`.
            *args: what it works on, unchanged until the scope ends.
            then: called with its result, in the order of the calls of `run`.
        """
        self._waiting.append((self._pool.submit(function, *args), then))
        if len(self._waiting) > self._ahead:
            self._use_one()

    def finish(self) -> None:
        """Wait for all work that was given, and use its results."""
        while self._waiting:
            self._use_one()

    def _use_one(self) -> None:
        future, then = self._waiting.popleft()
        then(future.result())


PIECE = 1 << 20
"""Entries of an array that are in memory at a time, in each of a few threads."""

_FEW_AHEAD = 5
"""Pieces that wait to be used, with what is made of them."""

Item = TypeVar("Item")
Made = TypeVar("Made")


class Entries(ABC):
    """An array that is read in pieces, never whole.

    Args:
        shape: its shape.
        dtype: type of an entry.

    Attributes:
        nonzero: number of its entries that are not zero, once somebody has read all;
            None before.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.nonzero: int | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.dtype.itemsize

    @abstractmethod
    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all entries in order, as arrays of one axis."""

    def whole(self) -> np.ndarray:
        """Return the whole array."""
        made, place = np.empty(self.size, self.dtype), 0
        for piece in self.pieces():
            made[place : place + piece.size] = piece
            place += piece.size
        return made.reshape(self.shape)


class Readable(Entries):
    """An array of which any part can be read at any time, by any thread."""

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the entries from one place to another, an array of one axis."""

    def map(
        self, function: Callable[[tuple[int, int]], Made], progress: Progress | None
    ) -> Iterator[Made]:
        """Yield `function((start, stop))` of every piece, a few of them made ahead.

        Args:
            function: takes where a piece begins and ends; other threads call it.
            progress: is told of the bytes of each piece; None for nobody.
        """
        made = in_order(function, cuts(self.size))
        for (start, stop), each in zip(cuts(self.size), made, strict=True):
            yield each
            if progress is not None:
                progress.add((stop - start) * self.dtype.itemsize)

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield all entries in order, as arrays of one axis."""
        found = 0
        for piece in self.map(lambda cut: self.read(*cut), None):
            found += int(np.count_nonzero(piece))
            yield piece
        self.nonzero = found


class InFile(Readable):
    """An array that lies in a file as it is.

    Args:
        shape: its shape.
        dtype: type of an entry.
        file: descriptor of the file, open to read.
        place: the byte where it begins; None for zeros, of which nothing is there.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, file: int, place: int | None
    ) -> None:
        super().__init__(shape, dtype)
        self._file, self._place = file, place

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the entries from one place to another, an array of one axis."""
        if self._place is None:
            return np.zeros(stop - start, self.dtype)
        place = self._place + start * self.dtype.itemsize
        end, parts = self._place + stop * self.dtype.itemsize, []
        while place < end:  # one call reads 2 GiB at most
            parts.append(read_at(self._file, end - place, place))
            if not parts[-1]:
                raise OSError("the file with the weights became shorter")
            place += len(parts[-1])
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        return np.frombuffer(content, self.dtype)


class Mapped(Readable):
    """An array over a file, of which no page stays in memory.

    Args:
        array: it.
    """

    def __init__(self, array: MappedArray) -> None:
        super().__init__(array.shape, array.dtype)
        self._array, self._entries = array, array.view(np.ndarray).reshape(-1)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the entries from one place to another, an array of one axis."""
        piece = self._entries[start:stop].copy()
        self._array.release_around(start, stop)
        return piece


def zeros(shape: tuple[int, ...], dtype: Any) -> InFile:
    """Return an array of zeros."""
    return InFile(shape, dtype, -1, None)


def cuts(size: int, unit: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the ends of pieces of `size` entries, each but the last of whole units."""
    step = max(PIECE // unit, 1) * unit
    for start in range(0, size, step):
        yield start, min(start + step, size)


def in_order(function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Yield `function(item)` of each item in turn, a few of them made ahead."""
    made: deque[Made] = deque()
    with Threads(ahead=_FEW_AHEAD) as threads:
        for item in items:
            threads.run(function, item, then=made.append)
            while made:
                yield made.popleft()
        threads.finish()
        yield from made
