"""What memory is used for, and how the framework and the data take it."""

from typing import TYPE_CHECKING, Any

from kerasmem.memory import allocator
from kerasmem.memory.measure import measure_step
from kerasmem.memory.pipeline import inspect_data, stream
from kerasmem.memory.settings import configure, status
from kerasmem.memory.wide_types import find_wide_types, narrow_weights
from kerasmem.optional import feature
from kerasmem.processes.isolated import isolated

if TYPE_CHECKING:
    from kerasmem.extras.growth import scope, watch_growth

__all__ = [
    "allocator",
    "configure",
    "find_wide_types",
    "inspect_data",
    "isolated",
    "measure_step",
    "narrow_weights",
    "scope",
    "status",
    "stream",
    "watch_growth",
]


def __getattr__(name: str) -> Any:
    """Return a name of `__all__` that `kerasmem/extras` defines."""
    if name in __all__:
        return feature(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
