"""Torch."""

from kerasmem.backends import Backend
from kerasmem.backends.profile import Followed, MemoryProfiler
from kerasmem.backends.torch.device import TorchDevice
from kerasmem.backends.torch.gradients import TorchGradients
from kerasmem.backends.torch.profile import TorchProfiler
from kerasmem.backends.torch.recompute import TorchRecompute
from kerasmem.backends.torch.steps import TorchStepping
from kerasmem.backends.torch.variables import TorchVariables


class TorchBackend(
    TorchDevice, TorchVariables, TorchStepping, TorchGradients, TorchRecompute, Backend
):
    """What kerasmem asks of torch."""

    name = "torch"

    def memory_profiler(self, followed: Followed) -> MemoryProfiler:
        """Return what records every allocation and free."""
        return TorchProfiler(followed)


ADAPTER = TorchBackend()
