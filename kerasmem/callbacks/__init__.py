"""What goes into `model.fit(callbacks=[...])`."""

from typing import TYPE_CHECKING, Any

from kerasmem.callbacks.channel_sparsity import ChannelSparsity
from kerasmem.callbacks.freeze_batch_norm import FreezeBatchNorm
from kerasmem.callbacks.gradient_monitor import GradientMonitor
from kerasmem.callbacks.memory_monitor import MemoryMonitor
from kerasmem.callbacks.memory_timeline import MemoryTimeline
from kerasmem.callbacks.pruning import Pruning
from kerasmem.optional import feature

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


def __getattr__(name: str) -> Any:
    """Return a name of `__all__` that `kerasmem/extras` defines."""
    if name in __all__:
        return feature(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
