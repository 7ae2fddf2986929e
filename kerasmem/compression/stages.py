"""The stage of a compression that is under way, for a progress display."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
