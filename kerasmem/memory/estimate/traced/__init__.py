"""What a step needs, from the graph that the framework would run. Nothing runs."""

from kerasmem.memory.estimate.child import estimate_in_child
from kerasmem.memory.estimate.request import Request
from kerasmem.records import MemoryEstimate


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate, made in a process of its own.

    The step is traced there as if a GPU were present, so that nothing of the caller's
    process changes, and on the backend that is asked for.

    Raises:
        ModelError: if the child cannot make the model from its config.
    """
    return estimate_in_child("traced", request)
