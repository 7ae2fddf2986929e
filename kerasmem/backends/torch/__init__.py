"""Torch."""

from kerasmem.backends import Backend
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

    memory_profiler = TorchProfiler


ADAPTER = TorchBackend()
