"""Progress of long operations by stage, for a progress display."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Show = Callable[[str, int, int], None]
"""Receives the stage, the bytes done and the total bytes (0 if unknown)."""

OPENING = "opening the model"
"""Stage in which the model and the arguments are checked."""

TRAINING = "fine-tuning"
"""Stage that callbacks display."""

_SHOW: ContextVar[Show | None] = ContextVar("show", default=None)


@contextmanager
def shown_by(show: Show) -> Iterator[None]:
    """Context manager that reports all stages of this thread to `show`."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


def stage(name: str, done: int = 0, total: int = 0) -> None:
    """Reports the start or the progress of a stage, in bytes of weights.

    A `total` of 0 means unknown.
    """
    show = _SHOW.get()
    if show is not None:
        show(name, done, total)


class Progress:
    """Progress of one stage, with a total in bytes."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._done, self._total = name, 0, total
        stage(name, 0, total)

    def add(self, nbytes: int) -> None:
        """Adds bytes done. Must be called from the thread that displays the stage."""
        self._done = min(self._done + nbytes, self._total)
        stage(self._name, self._done, self._total)

    def of(self, pieces: Iterable[Any]) -> Iterator[Any]:
        """Yields arrays and adds the bytes of each array after its use."""
        for piece in pieces:
            yield piece
            self.add(piece.nbytes)
