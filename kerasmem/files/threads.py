"""Work on pieces of arrays that threads do ahead."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

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


PIECE = 1 << 19
"""Entries of an array that one thread works on at a time."""

_FEW_AHEAD = 5
"""Pieces that wait to be used, with what is made of them."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Yield `function(item)` of each item in turn, a few of them made ahead."""
    results = deque[Made]()
    with Threads(ahead=_FEW_AHEAD) as threads:
        for item in items:
            threads.run(function, item, then=results.append)
            while results:
                yield results.popleft()
        threads.finish()
        yield from results


def map_pieces(
    function: Callable[[int, np.ndarray], Made],
    array: np.ndarray,
    progress: Progress | None = None,
) -> Iterator[Made]:
    """Yield `function(start, piece)` for each piece of an array, in order.

    Args:
        function: takes the place of the first entry, and entries that follow each
            other, an array of one axis. Other threads call it.
        array: of any shape.
        progress: is told of the bytes of each piece; None for nobody.
    """
    flat = array.reshape(-1)
    starts = range(0, flat.size, PIECE)
    if len(starts) == 1:
        results = iter([function(0, flat)])
    else:
        results = in_order(lambda n: function(n, flat[n : n + PIECE]), starts)
    for start, each in zip(starts, results, strict=True):
        yield each
        if progress is not None:
            progress.add(flat[start : start + PIECE].nbytes)


def map_entries(
    function: Callable[[int, np.ndarray], np.ndarray], array: np.ndarray
) -> np.ndarray:
    """Return an array of the same shape and type, made piece by piece.

    Args:
        function: as for `map_pieces`; returns as many entries as it takes.
        array: of any shape.
    """
    entries, place = np.empty(array.size, array.dtype), 0
    for piece in map_pieces(function, array):
        entries[place : place + piece.size] = piece
        place += piece.size
    return entries.reshape(array.shape)
