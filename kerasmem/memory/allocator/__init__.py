"""Simulation of TensorFlow's device allocator, to predict whether a training fits."""

from kerasmem.memory.allocator.bfc import BFCAllocator, Chunk, PoolPolicy
from kerasmem.memory.allocator.recording import MemoryWatcher, why_refused

__all__ = [
    "BFCAllocator",
    "Chunk",
    "MemoryWatcher",
    "PoolPolicy",
    "why_refused",
]
