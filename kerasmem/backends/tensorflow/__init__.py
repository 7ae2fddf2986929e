"""The TensorFlow adapter."""

from kerasmem.backends import Backend
from kerasmem.backends.profile import Followed, MemoryProfiler
from kerasmem.backends.tensorflow.device import TensorFlowDevice
from kerasmem.backends.tensorflow.gradients import TensorFlowGradients
from kerasmem.backends.tensorflow.profile import TensorFlowProfiler
from kerasmem.backends.tensorflow.recompute import TensorFlowRecompute
from kerasmem.backends.tensorflow.steps import TensorFlowStepping
from kerasmem.backends.tensorflow.variables import TensorFlowVariables


class TensorFlowBackend(
    TensorFlowDevice,
    TensorFlowVariables,
    TensorFlowStepping,
    TensorFlowGradients,
    TensorFlowRecompute,
    Backend,
):
    """The TensorFlow adapter."""

    name = "tensorflow"
    adds_along_any_axis = True
    recovers_logits = True
    converts_models = True
    fuses_fake_quantization = True

    def memory_profiler(self, followed: Followed) -> MemoryProfiler:
        """Return a profiler that records all allocations."""
        return TensorFlowProfiler(followed, self.device_memory)


ADAPTER = TensorFlowBackend()
