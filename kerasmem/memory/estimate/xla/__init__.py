"""What a compiled step needs, from what XLA is given to compile. Nothing runs."""

import tempfile

from kerasmem.errors import ConfigError
from kerasmem.memory.estimate.child import estimate_in_child
from kerasmem.memory.estimate.request import Request
from kerasmem.records import MemoryEstimate


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate, made in a process of its own.

    On the CPU the step is compiled, and the temporary memory is that of XLA's own
    plan. For a GPU, which need not be there, XLA's fusion is imitated.

    Raises:
        ConfigError: if the step is not compiled, or not by XLA.
        ModelError: if the child cannot make the model from its config.
    """
    if request.backend == "torch" or not request.jit_compile:
        raise ConfigError(
            "XLA compiles no such step. Expected: jit_compile=True on TensorFlow or "
            f"JAX. Received: jit_compile={request.jit_compile}, "
            f"backend={request.backend!r}. Next: use method='traced'."
        )
    with tempfile.TemporaryDirectory(prefix="kerasmem-xla-") as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        return estimate_in_child("xla", request, {"XLA_FLAGS": flags})
