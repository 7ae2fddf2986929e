"""The torch adapter."""

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
    """The torch adapter."""

    name = "torch"
    hides_layers_of_hub = True

    memory_profiler = TorchProfiler


ADAPTER = TorchBackend()
