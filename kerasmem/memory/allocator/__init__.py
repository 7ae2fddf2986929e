"""TensorFlow's allocator for devices, simulated: will it fit, and if not, why not?"""

from kerasmem.memory.allocator.advice import why_refused
from kerasmem.memory.allocator.bfc import BFCAllocator, Chunk, PoolPolicy
from kerasmem.memory.allocator.replay import Replay, replay
from kerasmem.memory.allocator.watcher import MemoryWatcher

__all__ = [
    "BFCAllocator",
    "Chunk",
    "MemoryWatcher",
    "PoolPolicy",
    "Replay",
    "replay",
    "why_refused",
]
