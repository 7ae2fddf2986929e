"""What memory is used for, and how the framework and the data take it."""

from typing import TYPE_CHECKING

from kerasmem.memory import allocator
from kerasmem.memory.measure import measure_step
from kerasmem.memory.pipeline import inspect_data, stream
from kerasmem.memory.settings import configure, status
from kerasmem.memory.wide_types import find_wide_types, narrow_weights
from kerasmem.optional import module_attributes
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

__getattr__, __dir__ = module_attributes(__name__, __all__)
