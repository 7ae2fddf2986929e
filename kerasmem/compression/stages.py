"""Which stage of a compression is under way, told to whoever shows it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Tell = Callable[[str, int, int], None]
"""Takes a stage, what is done of it and what there is to do, in bytes; 0 if unknown."""

TRAINING = "fine-tuning"
"""The stage that shows itself, by its own callbacks."""

_TELL: ContextVar[Tell | None] = ContextVar("tell", default=None)


@contextmanager
def told_to(tell: Tell) -> Iterator[None]:
    """Return a scope in which `tell` hears of every stage of this thread."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


def stage(name: str, done: int = 0, total: int = 0) -> None:
    """Tell of a stage that begins, or goes on.

    Args:
        name: of the stage, such as `"prune"`.
        done: bytes of the weights that are done.
        total: bytes that there are to do; 0 if that is not known.
    """
    tell = _TELL.get()
    if tell is not None:
        tell(name, done, total)
