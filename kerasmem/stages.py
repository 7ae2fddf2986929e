"""The stage of long work that is under way, for a progress display."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Show = Callable[[str, int, int], None]
"""Takes a stage, what is done of it and what there is to do, in bytes; 0 if unknown."""

OPENING = "opening the model"
"""The stage in which a model and what is asked for are checked."""

TRAINING = "fine-tuning"
"""The stage that shows itself, by its own callbacks."""

_SHOW: ContextVar[Show | None] = ContextVar("show", default=None)


@contextmanager
def shown_by(show: Show) -> Iterator[None]:
    """Return a scope in which `show` is called with every stage of this thread."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


def stage(name: str, done: int = 0, total: int = 0) -> None:
    """Report a stage that begins, or goes on.

    Args:
        name: of the stage, such as `"prune"`.
        done: bytes of the weights that are done.
        total: bytes that there are to do; 0 if that is not known.
    """
    show = _SHOW.get()
    if show is not None:
        show(name, done, total)


class Progress:
    """How much of a stage is done.

    Args:
        name: of the stage.
        total: bytes that there are to do.
    """

    def __init__(self, name: str, total: int) -> None:
        self._name, self._done, self._total = name, 0, total
        stage(name, 0, total)

    def add(self, nbytes: int) -> None:
        """Report bytes that are done; the thread that shows the stage has to do it."""
        self._done = min(self._done + nbytes, self._total)
        stage(self._name, self._done, self._total)

    def of(self, pieces: Iterable[Any]) -> Iterator[Any]:
        """Yield arrays, and report the bytes of each when it has been used."""
        for piece in pieces:
            yield piece
            self.add(piece.nbytes)
