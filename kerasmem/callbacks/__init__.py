"""What goes into `model.fit(callbacks=[...])`."""

from typing import TYPE_CHECKING

from kerasmem.callbacks.channel_sparsity import ChannelSparsity
from kerasmem.callbacks.freeze_batch_norm import FreezeBatchNorm
from kerasmem.callbacks.gradient_monitor import GradientMonitor
from kerasmem.callbacks.memory_monitor import MemoryMonitor
from kerasmem.callbacks.memory_timeline import MemoryTimeline
from kerasmem.callbacks.pruning import Pruning
from kerasmem.optional import module_attributes

if TYPE_CHECKING:
    from kerasmem.extras.trackers import log_run

__all__ = [
    "ChannelSparsity",
    "FreezeBatchNorm",
    "GradientMonitor",
    "MemoryMonitor",
    "MemoryTimeline",
    "Pruning",
    "log_run",
]

__getattr__, __dir__ = module_attributes(__name__, __all__)
