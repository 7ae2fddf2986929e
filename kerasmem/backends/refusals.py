"""What an allocator held when it refused a request."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PoolState:
    """An allocator's pool at one moment.

    Args:
        in_use_bytes: bytes in use.
        pool_bytes: bytes of the pool, in use or not.
        largest_free_bytes: largest free block of the pool.
    """

    in_use_bytes: int
    pool_bytes: int
    largest_free_bytes: int


class RefusalLog(Protocol):
    """What the allocators write down while the scope is open that gave it."""

    def fullest(self) -> PoolState | None:
        """Return the state in which most was in use, since the last such call.

        None if no request was refused, or the framework does not tell.
        """
        ...


class _NoLog:
    def fullest(self) -> PoolState | None:
        return None


@contextmanager
def nothing_noted() -> Iterator[RefusalLog]:
    """Give a log that stays empty, for a framework that tells nothing."""
    yield _NoLog()
