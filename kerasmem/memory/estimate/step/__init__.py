"""What a step needs, from real steps of small batches on this machine's CPU."""

from kerasmem.errors import ConfigError
from kerasmem.memory.estimate.child import estimate_in_child
from kerasmem.memory.estimate.request import Request
from kerasmem.records import MemoryEstimate

COUNTING_ALLOCATOR = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
"""Environment in which TensorFlow's CPU allocator is the one of a GPU, and counts."""


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate; the steps run in a process of their own.

    Raises:
        ConfigError: on JAX, which tells nothing of its memory on a CPU.
        ModelError: if the child cannot make the model from its config.
    """
    if request.backend == "jax":
        raise ConfigError(
            "JAX does not tell how much memory it uses on a CPU. Expected: a backend "
            "of 'tensorflow' or 'torch'. Received: backend='jax'. Next: use "
            "method='traced'."
        )
    return estimate_in_child("step", request, COUNTING_ALLOCATOR)
