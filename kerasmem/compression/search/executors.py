"""Where the trials of a search run."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kerasmem.compression.search.ray_executor import RayExecutor, check_ray
from kerasmem.errors import ConfigError


def check_parallel(parallel: Any) -> None:
    """Raise unless trials can run there.

    Raises:
        ConfigError: if it is no executor of processes, or is not installed.
    """
    if parallel is None:
        return
    is_executor = isinstance(parallel, Executor)
    if isinstance(parallel, ThreadPoolExecutor) or not (
        is_executor or parallel == "ray"
    ):
        raise ConfigError(
            "The trials of a search run one after the other (None), on Ray ('ray'), or "
            "in the processes of a concurrent.futures.Executor; threads would share "
            f"their random numbers. Received: parallel={parallel!r}."
        )
    if parallel == "ray":
        check_ray()


@contextmanager
def executing(parallel: Any) -> Iterator[Executor]:
    """Return a scope with the executor; one of the caller's own stays open."""
    if isinstance(parallel, Executor):
        yield parallel
        return
    with RayExecutor() as executor:
        yield executor
