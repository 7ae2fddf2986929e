"""Inspects and configures the memory of the framework and of the data."""

from typing import TYPE_CHECKING

from kerasmem.memory import allocator
from kerasmem.memory.dtypes import inspect_dtypes
from kerasmem.memory.pipeline import inspect_data, stream
from kerasmem.memory.settings import configure, status
from kerasmem.optional import module_attributes
from kerasmem.processes.isolated import isolated

if TYPE_CHECKING:
    from kerasmem.extras.growth import scope

__all__ = [
    "allocator",
    "configure",
    "inspect_data",
    "inspect_dtypes",
    "isolated",
    "scope",
    "status",
    "stream",
]

__getattr__, __dir__ = module_attributes(__name__, __all__)
