"""Input pipelines: their host memory, and streaming from disk."""

from kerasmem.memory.pipeline.inspect import inspect_data
from kerasmem.memory.pipeline.stream import Stream, stream

__all__ = ["Stream", "inspect_data", "stream"]
