"""The input pipeline: what it holds in the host's memory, and how it can hold less."""

from kerasmem.memory.pipeline.inspect import inspect_data
from kerasmem.memory.pipeline.stream import Stream, stream

__all__ = ["Stream", "inspect_data", "stream"]
