"""Progress of long operations by stage, for a progress display."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import Any

Show = Callable[[str, int, int], None]
"""Receives the stage, the bytes done and the total bytes (0 if unknown)."""

OPENING = "opening the model"
"""Stage in which the model and the arguments are checked."""

TRAINING = "fine-tuning"
"""Stage that callbacks display."""

_SILENCE = 10.0
"""Seconds after which a stage without a display is announced."""

_SHOW: ContextVar[Show | None] = ContextVar("show", default=None)


@contextmanager
def shown_by(show: Show) -> Iterator[None]:
    """Context manager that reports all stages of this thread to `show`."""
    token = _SHOW.set(show)
    try:
        yield
    finally:
        _SHOW.reset(token)


class Announcer:
    """Prints a stage to stderr once it takes ten seconds."""

    def __init__(self) -> None:
        self._name, self._timer = "", Timer(0, int)

    def __call__(self, name: str, *_: int) -> None:
        """Starts the time of a stage, unless it is the current one."""
        if name != self._name:
            self.stop()
            line = f"kerasmem: {name} takes more than {_SILENCE:.0f} s"
            self._name, self._timer = name, Timer(_SILENCE, _say, [line])
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """Ends the current stage."""
        self._timer.cancel()
        self._name = ""


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


@contextmanager
def announced() -> Iterator[None]:
    """Context manager that prints long stages to stderr, unless they have a display.

    The first stage is `OPENING`.
    """
    if _SHOW.get() is not None:
        yield
        return
    announcer = Announcer()
    with shown_by(announcer):
        stage(OPENING)
        try:
            yield
        finally:
            announcer.stop()


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
