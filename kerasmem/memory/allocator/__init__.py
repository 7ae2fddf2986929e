"""TensorFlow's allocator for devices, simulated: will it fit, and if not, why not?"""

from kerasmem.memory.allocator.bfc import BFCAllocator
from kerasmem.memory.allocator.pool import Chunk, PoolPolicy
from kerasmem.memory.allocator.replay import (
    Replay,
    load_timelines,
    replay,
    save_timeline,
)
from kerasmem.memory.allocator.watcher import MemoryWatcher, why_refused

__all__ = [
    "BFCAllocator",
    "Chunk",
    "MemoryWatcher",
    "PoolPolicy",
    "Replay",
    "load_timelines",
    "replay",
    "save_timeline",
    "why_refused",
]
