"""Method "traced": memory of a step from the traced program of the framework."""

import tempfile
from dataclasses import replace

from kerasmem.backends.trace import tracer
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import has_graph, sublayers
from kerasmem.memory.estimate.inputs import symbolic_batch
from kerasmem.memory.estimate.request import Request, answer_in_child
from kerasmem.memory.estimate.traced import on_tensorflow, on_torch, on_xla
from kerasmem.memory.timeline import watched
from kerasmem.records import MemoryEstimate


def estimate(request: Request) -> MemoryEstimate:
    """Estimate the memory of a step in a child process.

    The child traces the step as if a GPU were present, on the requested backend. On a
    CPU, XLA compiles the step, and the temporary memory is from XLA's plan.

    Raises:
        ConfigError: If variables are sharded over devices.
        ModelError: If the child cannot restore the model from its config.
    """
    _check_generation(request)
    sharding = request.sharding
    if sharding.devices > 1:
        if sharding.devices > sharding.replicas:
            raise ConfigError(
                "A trace covers one device with all variables. Expected: no "
                "distribution, or DataParallel. Received: a model sharded over "
                f"{sharding.devices // sharding.replicas} devices. Next: pass "
                "method='analytic' or 'plan'."
            )
        alone = estimate(request.of_a_replica())
        return replace(alone, batch_size=request.batch_size, devices=sharding.devices)
    if request.device != "cpu" or not request.jit_compile:
        return answer_in_child(__name__, request)
    with tempfile.TemporaryDirectory(prefix="kerasmem-xla-") as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        return answer_in_child(__name__, request, {"XLA_FLAGS": flags})


def _check_generation(request: Request) -> None:
    is_planned = request.jit_compile and request.device == "cpu"
    if request.generate is None or is_planned:
        return
    others = "'analytic' or 'plan'" if has_graph(request.model) else "'plan'"
    raise ConfigError(
        "The memory of a generation loop cannot be traced. Expected: a compiled step "
        "and device='cpu', for which XLA has a memory plan. Received: "
        f"generate={request.generate}, device={request.device!r}, jit_compile="
        f"{request.jit_compile}. Next: pass method={others}."
    )


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Estimate the memory from a trace in this process.

    The model gets an optimizer with slots and is traced, so it must be a copy.
    """
    is_compiled = request.jit_compile
    if is_compiled and request.backend == "tensorflow" and request.device == "gpu":
        # Keras detects layers without XLA support only if a GPU is present.
        is_compiled = tracer().compiles_on_gpu(sublayers(request.model))
        request = replace(request, jit_compile=is_compiled)
    if request.training and not request.builds_optimizer():
        # The first trace creates the slots of the custom optimizers.
        variables, batch = watched(request.model)[1], symbolic_batch(request)
        tracer().step_graph(variables, batch, step=request.step, on_gpu=False)
    if request.backend == "jax" or (request.backend == "tensorflow" and is_compiled):
        return on_xla.estimate_in_process(request)
    by_graph = on_torch if request.backend == "torch" else on_tensorflow
    return by_graph.estimate_in_process(request)
