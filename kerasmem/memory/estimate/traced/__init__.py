"""What a step needs, from the program that the framework would run. Nothing runs."""

import tempfile
from dataclasses import replace

import keras

from kerasmem.backends.trace import tracer
from kerasmem.errors import ConfigError
from kerasmem.graph.layers import has_graph, sublayers
from kerasmem.memory.estimate.inputs import symbolic_batch
from kerasmem.memory.estimate.request import Request, answer_in_child
from kerasmem.memory.estimate.traced import on_tensorflow, on_torch, on_xla
from kerasmem.memory.timeline import watched
from kerasmem.records import MemoryEstimate


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate, made in a process of its own.

    The step is traced there as if a GPU were present, so that nothing of the caller's
    process changes, and on the backend that is asked for. What XLA compiles for the CPU
    it does compile, and the temporary memory is that of its own plan.

    Raises:
        ConfigError: if devices have parts of a variable.
        ModelError: if the child cannot make the model from its config.
    """
    _check_generation(request)
    sharding = request.sharding
    if sharding.devices > 1:
        if sharding.devices > sharding.replicas:
            raise ConfigError(
                "A trace is that of one device which has every variable. Expected: no "
                "distribution, or DataParallel. Received: a model that is split over "
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
        "A trace does not tell what a loop keeps, and generation is one. Expected: a "
        "compiled step and device='cpu', of which XLA makes its own plan. Received: "
        f"generate={request.generate}, device={request.device!r}, jit_compile="
        f"{request.jit_compile}. Next: pass method={others}."
    )


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Return the estimate from a trace, in this process and on its backend.

    The model gets an optimizer with slots, and is traced: hand in one of your own.

    Raises:
        ConfigError: if another backend is asked for than the running one.
    """
    how, is_compiled = "is traced on the backend that runs it", request.jit_compile
    request.check_backend(keras.backend.backend(), how)
    if is_compiled and request.backend == "tensorflow" and request.device == "gpu":
        # A layer may forbid it: Keras says so itself, but only where the device is.
        is_compiled = tracer().compiles_on_gpu(sublayers(request.model))
        request = replace(request, jit_compile=is_compiled)
    if request.training and not request.builds_optimizer():
        # The first trace makes the slots of the optimizers that the step has.
        variables, batch = watched(request.model)[1], symbolic_batch(request)
        tracer().step_graph(variables, batch, step=request.step, on_gpu=False)
    if request.backend == "jax" or (request.backend == "tensorflow" and is_compiled):
        return on_xla.estimate_in_process(request)
    by_graph = on_torch if request.backend == "torch" else on_tensorflow
    return by_graph.estimate_in_process(request)
