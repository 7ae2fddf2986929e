"""What goes into `model.fit(callbacks=[...])`."""

from kerasmem.callbacks.gradient_monitor import GradientMonitor
from kerasmem.callbacks.memory_monitor import MemoryMonitor

__all__ = ["GradientMonitor", "MemoryMonitor"]
