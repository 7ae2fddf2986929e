"""What goes into `model.fit(callbacks=[...])`."""

from kerasmem.callbacks.channel_sparsity import ChannelSparsity
from kerasmem.callbacks.gradient_monitor import GradientMonitor
from kerasmem.callbacks.memory_monitor import MemoryMonitor
from kerasmem.callbacks.memory_timeline import MemoryTimeline
from kerasmem.callbacks.pruning import Pruning
from kerasmem.callbacks.quantization_aware import QuantizationAware

__all__ = [
    "ChannelSparsity",
    "GradientMonitor",
    "MemoryMonitor",
    "MemoryTimeline",
    "Pruning",
    "QuantizationAware",
]
