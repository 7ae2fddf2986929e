"""Processes blocks of arrays on several threads."""

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
"""Number of pending results. Equal on all machines, so that the file layout is
reproducible."""


class Threads:
    """Context manager for work that releases the GIL, such as NumPy and codecs.

    All work is complete at the end of the scope. After an error, pending work is
    cancelled. At most `ahead` results are pending.
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
        """Calls a function on another thread and passes the result to `then` later.

        The arguments must not change until the scope ends. `then` is called on this
        thread, in the order of the calls of `run`.
        """
        self._waiting.append((self._pool.submit(function, *args), then))
        if len(self._waiting) > self._ahead:
            self._use_one()

    def finish(self) -> None:
        """Waits for all submitted work and passes the results on."""
        while self._waiting:
            self._use_one()

    def _use_one(self) -> None:
        future, then = self._waiting.popleft()
        then(future.result())


PIECE = 1 << 19
"""Number of array entries per call."""

_FEW_AHEAD = 5
"""Number of pending results with large memory use."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Yields `function(item)` for each item in order, computing a few items ahead."""
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
    """Yields `function(start, piece)` for each block of an array, in order.

    Other threads call the function with the index of the first entry and a
    one-dimensional block. `progress` receives the bytes of each block.
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
    """Returns an array of the same shape and type, computed block by block.

    The function returns as many entries as it receives. See `map_pieces`.
    """
    entries, place = np.empty(array.size, array.dtype), 0
    for piece in map_pieces(function, array):
        entries[place : place + piece.size] = piece
        place += piece.size
    return entries.reshape(array.shape)
