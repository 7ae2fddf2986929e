"""TensorFlow's allocator for devices, simulated: will it fit, and if not, why not?"""

from kerasmem.memory.allocator.advice import why_refused
from kerasmem.memory.allocator.bfc import BFCAllocator
from kerasmem.memory.allocator.bins import Chunk
from kerasmem.memory.allocator.policy import PoolPolicy
from kerasmem.memory.allocator.replay import Replay, replay
from kerasmem.memory.allocator.run_folder import load_timelines, save_timeline
from kerasmem.memory.allocator.watcher import MemoryWatcher

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
