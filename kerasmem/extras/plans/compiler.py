"""Runs XLA's GPU compiler in a separate process and reads its plan.

The compiler is part of JAX's CUDA plug-in, which the extra `kerasmem[plans]` installs.
It compiles for the description of a GPU and needs no GPU.
"""

import hashlib
import importlib.util
import json
import os
import re
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.trace import tracer
from kerasmem.errors import ConfigError, InputError, ModelError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import nbytes
from kerasmem.memory.estimate.inputs import symbolic_batch
from kerasmem.memory.estimate.request import Request, request_of
from kerasmem.memory.timeline import watched
from kerasmem.processes import ON_THE_CPU, run_in_child, run_script
from kerasmem.records.regular import read_regular
from kerasmem.units import MIB

_PLUGINS = {
    "jax-cuda13-plugin": ("nvidia-cuda-nvcc", "nvidia-nvvm"),
    "jax-cuda12-plugin": ("nvidia-cuda-nvcc-cu12",),
}
"""Packages with the assembler and the device library that each plug-in needs."""
_INSTALL = (
    "Next: pip install 'kerasmem[plans]', about 1 GB; it needs Linux, but no GPU, "
    "driver or CUDA."
)
_FLAGS = (
    # On a GPU, autotuning chooses cuBLAS for nearly all matrix products. The default
    # without a GPU is Triton, which fuses preceding operations into the product.
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_dump_hlo_as_proto",
)
_PLAN = "*gpu_after_optimizations.hlo.pb"


@dataclass(frozen=True)
class StepProgram:
    """A step before XLA compiles it.

    `kind` is `"hlo"` for a serialized `HloModuleProto`, or `"stablehlo"` for bytecode.
    """

    kind: str
    content: bytes
    batch: tuple[int, ...] = ()


def check_installed() -> str:
    """Return the name and version of the plug-in that contains the compiler.

    Raises:
        ConfigError: If the plug-in is missing or its version differs from jaxlib's.
    """
    jaxlib = _version("jaxlib")
    for plugin, tools in _PLUGINS.items():
        version = _version(plugin)
        if version is None:
            continue
        missing = [tool for tool in tools if _version(tool) is None]
        if missing:
            raise ConfigError(
                f"XLA's GPU compiler needs more than its plug-in. Expected: "
                f"{', '.join(tools)} installed with {plugin}. Received: no "
                f"{', '.join(missing)}. {_INSTALL}"
            )
        if version != jaxlib:
            raise ConfigError(
                "XLA's GPU compiler and jaxlib must have the same version. "
                f"Expected: {plugin}=={jaxlib}. Received: {plugin} "
                f"{version}. Next: pip install {plugin}=={jaxlib}."
            )
        return f"{plugin} {version}"
    raise ConfigError(
        "A plan needs XLA's GPU compiler, which is part of JAX's CUDA plug-in. "
        f"Expected: one of {', '.join(_PLUGINS)} installed. Received: none. "
        f"{_INSTALL}"
    )


def program_of(request: Request) -> StepProgram:
    """Trace the step of a request in a child process.

    Raises:
        ModelError: If the model cannot be sent to the process, or XLA cannot compile
            its step.
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
    """Write the program of a step to a file. Runs in the child process."""
    with backends.current().distributed(job["distribution"]):
        return _traced(job)


def _traced(job: dict[str, Any]) -> dict[str, Any]:
    request = request_of(job)
    if request.backend == "tensorflow" and not tracer().compiles_on_gpu(
        sublayers(request.model)
    ):
        raise ModelError(
            "XLA cannot compile a layer of the model on a GPU. Keras then compiles "
            "no part of the step, and there is no plan. Expected: layers that "
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
    """Return the `HloProto` of a program compiled for a GPU, cached if possible.

    Raises:
        ConfigError: If the compiler is not installed.
        ChildDiedError: If the compiler fails.
    """
    flags = _flags(program)
    # TensorFlow writes the entries of maps in another order in each process.
    content = _MAP.sub(
        lambda m: b"".join(sorted(_ENTRY.findall(m[0]))), program.content
    )
    name = key(content, target, devices, flags, check_installed())
    plan = read(name)
    if plan is None:
        plan = _compile(program, target, devices, flags)
        write(name, plan)
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
    # Importing the module would import JAX in this process.
    home = importlib.util.find_spec("kerasmem")
    folder = Path(str(home and home.origin)).parent
    return folder / "backends" / "jax" / "compile_for_gpu.py"


def _flags(program: StepProgram) -> str:
    # The user's flags are for JAX. TensorFlow's compiler has another version.
    is_jax = program.kind == "stablehlo"
    own = os.environ.get("XLA_FLAGS", "").split() if is_jax else []
    own_flags = (flag for flag in own if not flag.startswith("--xla_dump"))
    return " ".join((*_FLAGS, *own_flags))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


_ENTRY = re.compile(rb"\n[\0-\x7f]\n[\0-\x7f]\w+\x12[\0-\x7f]\w*")
_MAP = re.compile(rb"(?:%b){2,}" % _ENTRY.pattern)
"""Entries of a map of strings in a serialized program."""

_MOST_FILES = 64
# Files are in `kerasmem/plans` of the user's cache folder. The name of each is a hash
# of all inputs of the plan. The oldest files are deleted.
_KEY = re.compile("[0-9a-f]{64}")
_MOST_BYTES = 256 * MIB
"""Maximum size of a plan, which is text of a few MiB."""


def key(*parts: Any) -> str:
    """Return a hash of bytes, strings and numbers.

    Example:
        >>> key(b"a", 1) == key(b"a", 1), key(b"a", 1) == key(b"a1")
        (True, False)
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()


def read(name: str) -> bytes | None:
    """Return the cached content of a key, or None if missing or incomplete."""
    path, inflate = _folder() / name, zlib.decompressobj()
    try:
        content = inflate.decompress(read_regular(path, _MOST_BYTES), _MOST_BYTES)
    except (OSError, InputError, zlib.error):
        return None
    if not inflate.eof:
        return None
    with suppress(OSError):
        path.touch()
    return content


def write(name: str, content: bytes) -> None:
    """Cache content under a key. File errors are ignored."""
    folder = _folder()
    with suppress(OSError, OutputError):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name, follow_link=False) as part:
            part.write_bytes(zlib.compress(content, 1))
        plans = [path for path in folder.iterdir() if _KEY.fullmatch(path.name)]
        newest = sorted(plans, key=_when, reverse=True)
        for path in newest[_MOST_FILES:]:
            path.unlink(missing_ok=True)


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "kerasmem", "plans")


def _when(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process deleted the file
        return 0.0
