"""What a step needs, from the program that the framework would run. Nothing runs."""

import tempfile

from kerasmem.memory.estimate.child import answer_in_child
from kerasmem.memory.estimate.request import Request
from kerasmem.records import MemoryEstimate


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate, made in a process of its own.

    The step is traced there as if a GPU were present, so that nothing of the caller's
    process changes, and on the backend that is asked for. What XLA compiles for the CPU
    it does compile, and the temporary memory is that of its own plan.

    Raises:
        ModelError: if the child cannot make the model from its config.
    """
    where = f"{__name__}.here"
    if request.device != "cpu" or not request.jit_compile:
        return answer_in_child(where, request)
    with tempfile.TemporaryDirectory(prefix="kerasmem-xla-") as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        return answer_in_child(where, request, {"XLA_FLAGS": flags})
