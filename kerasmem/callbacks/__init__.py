"""Callbacks for `model.fit(callbacks=[...])`."""

from kerasmem.callbacks.channel_sparsity import ChannelSparsity
from kerasmem.callbacks.freeze_batch_norm import FreezeBatchNorm
from kerasmem.callbacks.gradient_monitor import GradientMonitor
from kerasmem.callbacks.memory_monitor import MemoryMonitor
from kerasmem.callbacks.memory_timeline import MemoryTimeline
from kerasmem.callbacks.pruning import Pruning

__all__ = [
    "ChannelSparsity",
    "FreezeBatchNorm",
    "GradientMonitor",
    "MemoryMonitor",
    "MemoryTimeline",
    "Pruning",
]
