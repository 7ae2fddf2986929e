"""XLA's GPU compiler in a process of its own, and the plan that it writes down.

The compiler comes with JAX's plug-in for CUDA, which the extra `kerasmem[plans]`
installs. It compiles for the description of a card; there need not be one.
"""

import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.trace import tracer
from kerasmem.errors import ConfigError, ModelError
from kerasmem.extras.plans import cache
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import nbytes
from kerasmem.memory.estimate.inputs import symbolic_batch
from kerasmem.memory.estimate.request import Request, request_of
from kerasmem.memory.timeline import watched
from kerasmem.processes import ON_THE_CPU, run_in_child, run_script

_PLUGINS = {
    "jax-cuda13-plugin": ("nvidia-cuda-nvcc", "nvidia-nvvm"),
    "jax-cuda12-plugin": ("nvidia-cuda-nvcc-cu12",),
}
"""Each with what has the assembler and the library of functions that it needs."""
_INSTALL = (
    "Next: pip install 'kerasmem[plans]', about 1 GB; it needs Linux, and no card, "
    "driver or CUDA."
)
_FLAGS = (
    # On a card trials choose cuBLAS for nearly all products. Without one there are no
    # trials, and the default, Triton, fuses what is before a product into it.
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_dump_hlo_as_proto",
)
_PLAN = "*gpu_after_optimizations.hlo.pb"


@dataclass(frozen=True)
class StepProgram:
    """A step before XLA compiles it.

    Args:
        kind: `"hlo"` for a serialized `HloModuleProto`, `"stablehlo"` for bytecode.
        content: the bytes.
        batch: bytes of the arrays of the batch.
    """

    kind: str
    content: bytes
    batch: tuple[int, ...] = ()


def check_installed() -> str:
    """Return the plug-in that brings the compiler, with its version.

    Raises:
        ConfigError: if it is not installed, or not of jaxlib's version.
    """
    jaxlib = _version("jaxlib")
    for plugin, tools in _PLUGINS.items():
        version = _version(plugin)
        if version is None:
            continue
        missing = [tool for tool in tools if _version(tool) is None]
        if missing:
            raise ConfigError(
                f"XLA's compiler for a GPU needs more than its plug-in. Expected: "
                f"{', '.join(tools)} installed beside {plugin}. Received: no "
                f"{', '.join(missing)}. {_INSTALL}"
            )
        if version != jaxlib:
            raise ConfigError(
                "XLA's compiler for a GPU and jaxlib are of one version, or it does "
                f"not start. Expected: {plugin}=={jaxlib}. Received: {plugin} "
                f"{version}. Next: pip install {plugin}=={jaxlib}."
            )
        return f"{plugin} {version}"
    raise ConfigError(
        "A plan is made by XLA's compiler for a GPU, which comes with JAX's plug-in "
        f"for CUDA. Expected: one of {', '.join(_PLUGINS)} installed. Received: none. "
        f"{_INSTALL}"
    )


def program_of(request: Request) -> StepProgram:
    """Return the step of a request, traced in a process of its own.

    Raises:
        ModelError: if the model cannot go there, or XLA cannot compile its step.
    """
    with tempfile.TemporaryDirectory(prefix="kerasmem-plan-") as folder:
        path = Path(folder, "program")
        sharding = request.sharding
        environment = dict(ON_THE_CPU)
        if sharding.devices > 1:
            environment["XLA_FLAGS"] = (
                f"{os.environ.get('XLA_FLAGS', '')} "
                f"--xla_force_host_platform_device_count={sharding.devices}"
            )
        more = {"path": str(path), "distribution": sharding.config}
        answer = run_in_child(
            f"{__name__}:trace_job",
            {**request.job(), **more, "parts": sharding.replicas},
            backend=request.backend,
            environment=environment,
            doing=f"Tracing a step of batch size {request.batch_size}",
        )
        batch = tuple(answer["batch"])
        return StepProgram(answer["kind"], path.read_bytes(), batch)


def trace_job(job: dict[str, Any]) -> dict[str, Any]:
    """Write the program of a step to a file, and return the rest; runs in the child."""
    with backends.current().distributed(job["distribution"]):
        return _traced(job)


def _traced(job: dict[str, Any]) -> dict[str, Any]:
    request = request_of(job)
    if request.backend == "tensorflow" and not tracer().compiles_on_gpu(
        sublayers(request.model)
    ):
        raise ModelError(
            "A layer of the model is one that XLA cannot compile on a GPU, so Keras "
            "compiles none of it there, and there is no plan. Expected: layers that "
            f"support jit. Received: model={request.model.name!r}. Next: pass "
            "method='traced'."
        )
    _, variables = watched(request.model)
    batch = symbolic_batch(request)
    kind, content = tracer().gpu_program(variables, batch, step=request.step)
    Path(job["path"]).write_bytes(content)
    sizes = [nbytes(x) // job["parts"] for x in keras.tree.flatten(batch)]
    return {"kind": kind, "batch": sizes}


def compiled(program: StepProgram, target: str, devices: int = 1) -> bytes:
    """Return the `HloProto` of a program that was compiled for a card.

    What was compiled once is kept on disk, by a hash of all that it comes from.

    Args:
        program: the step.
        target: the card's description.
        devices: number of cards that share the step.

    Raises:
        ConfigError: if the compiler is not installed.
        ChildDiedError: if it ends by an error.
    """
    flags = _flags(program)
    key = cache.key(program.content, target, devices, flags, check_installed())
    plan = cache.read(key)
    if plan is None:
        plan = _compile(program, target, devices, flags)
        cache.write(key, plan)
    return plan


def _compile(program: StepProgram, target: str, devices: int, flags: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kerasmem-plan-") as folder:
        Path(folder, "program").write_bytes(program.content)
        order = {
            "program": "program",
            "kind": program.kind,
            "target": target,
            "devices": devices,
        }
        Path(folder, "order.json").write_text(json.dumps(order), encoding="utf-8")
        dump = Path(folder, "dump")
        environment = {"XLA_FLAGS": f"{flags} --xla_dump_to={dump}"}
        run_script(_script(), folder, doing="Compiling a step", environment=environment)
        return max(dump.glob(_PLAN), key=lambda path: path.stat().st_size).read_bytes()


def _script() -> Path:
    # Found, not imported: the module of JAX's room would import JAX here.
    home = importlib.util.find_spec("kerasmem")
    folder = Path(str(home and home.origin)).parent
    return folder / "backends" / "jax" / "compile_for_gpu.py"


def _flags(program: StepProgram) -> str:
    # The user's own, for JAX's programs: TensorFlow's compiler is another version.
    is_jax = program.kind == "stablehlo"
    own = os.environ.get("XLA_FLAGS", "").split() if is_jax else []
    own_flags = (flag for flag in own if not flag.startswith("--xla_dump"))
    return " ".join((*_FLAGS, *own_flags))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def versions() -> Iterator[str]:
    """Yield the versions that a plan hangs on."""
    yield check_installed()
    for name in ("kerasmem", "keras", "jaxlib", "tensorflow"):
        yield f"{name} {_version(name)}"
