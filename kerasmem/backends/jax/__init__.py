"""The JAX adapter."""

from kerasmem.backends import Backend
from kerasmem.backends.jax.device import JaxDevice
from kerasmem.backends.jax.gradients import JaxGradients
from kerasmem.backends.jax.profile import JaxProfiler
from kerasmem.backends.jax.recompute import JaxRecompute
from kerasmem.backends.jax.steps import JaxStepping
from kerasmem.backends.jax.variables import JaxVariables


class JaxBackend(
    JaxDevice, JaxVariables, JaxStepping, JaxGradients, JaxRecompute, Backend
):
    """The JAX adapter."""

    name = "jax"

    memory_profiler = JaxProfiler


ADAPTER = JaxBackend()
