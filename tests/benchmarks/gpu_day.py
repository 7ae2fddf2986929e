"""GPU measurements in small cases, ordered by value, that fit a lease of 15 minutes.

    python -m tests.benchmarks.gpu_day --list
    python -m tests.benchmarks.gpu_day -o gpu_day.jsonl [--backend jax] [--minutes 7.5]

Cases: tests marked `gpu`, monitors beside the figures of framework and driver, cost of
the monitors, estimates and plans beside measured peaks, out-of-memory, batch size
search, rematerialization under a limit, and products with int8 and int4 weights. Each
case runs in its own process and writes one line of JSON. A second call skips the cases
that the file contains; `--again` repeats the failed ones. After `--minutes` all
processes are ended; a case that was cut off is not recorded.

`--device cpu` runs a tiny version of each case without a GPU, with TensorFlow's GPU
allocator. This module imports only the standard library and the driver's bindings.

On a leased machine without a package index, run `tests/benchmarks/gpu_pack.sh` here
first: it collects the wheels in `.whl` and prints the command to paste.
"""

import argparse
import importlib.util
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pynvml

ROOT = Path(__file__).parents[2]
BACKENDS = ("jax", "torch", "tensorflow")
"""In the order of the lease: JAX and torch are installed on the machine."""
COMPILERS = {"tensorflow": (False, True), "jax": (False, True), "torch": (False,)}
MODELS = (
    *("mlp", "cnn", "transformer", "resnet50"),
    *("lstm", "mobilenetv2", "effnetb0", "vgg16"),
)
PACKAGES = ("kerasmem", "keras", "tensorflow", "jax", "jaxlib", "torch", "numpy")
AT_ONCE = {"gpu": 6, "cpu": 1}
ENVIRONMENT = {
    "gpu": {
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    },
    "cpu": {
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPU_ALLOCATOR_USE_BFC": "1",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
    },
}
"""Processes share a card where none takes more of it than it needs."""

SEARCHED = ("transformer", "resnet50")
OOM_LIMIT = {"gpu": 2**30, "cpu": 64 * 2**20}


@dataclass(frozen=True)
class Case:
    """One process, and what it is to find out.

    Args:
        kind: the function of `gpu_day_cases` that does it.
        backend: the Keras backend.
        settings: what the function takes.
        seconds: how long it should take.
        alone: whether nothing else may run, because times are measured.
    """

    kind: str
    backend: str
    settings: dict
    seconds: int
    alone: bool = True
    environment: dict = field(default_factory=dict)

    @property
    def name(self):
        settings = (f"{key}={value}" for key, value in self.settings.items())
        return " ".join((self.kind, self.backend, *settings))


def all_cases(device):
    """Return all cases for `"gpu"`, or the tiny ones for `"cpu"`, by value."""
    kinds = (
        marked,
        watched,
        monitors,
        peaks,
        out_of_memory,
        batch_sizes,
        rematerialized,
        products,
    )
    return [
        case
        for backends in (BACKENDS[:2], BACKENDS[2:])
        for kind in kinds
        for backend in backends
        for case in kind(backend, device)
    ]


def marked(backend, device):
    # The suite's own flags for XLA on a CPU are unknown to newer compilers.
    flags = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    yield Case("marked_tests", backend, {}, 40, False, flags)


def watched(backend, device):
    model = "small" if device == "cpu" else "cnn"
    yield Case("watched", backend, {"model": model}, 40, alone=False)


def monitors(backend, device):
    turns = 6 if device == "cpu" else 40
    jit = COMPILERS[backend][-1]
    for model in ("small",) if device == "cpu" else ("cnn", "mlp"):
        settings = {"model": model, "jit": jit, "first": 0, "turns": turns}
        yield Case("monitors", backend, settings, 20)


def peaks(backend, device):
    plain = {"dtype": "float32", "optimizer": "adam", "jit": COMPILERS[backend][-1]}
    ways = [plain, plain | {"dtype": "mixed_bfloat16"}]
    if backend == "tensorflow":
        ways.append(plain | {"jit": False})
    models, size = (["small"], 16) if device == "cpu" else (MODELS, 64)
    for way in ways:
        for model in models:
            settings = {"model": model, **way, "batch": size}
            yield Case("peak", backend, settings, 30, alone=False)


def out_of_memory(backend, device):
    if device == "cpu" and backend != "tensorflow":
        return  # without a limit of its allocator on a CPU
    limit = OOM_LIMIT[device]
    environment = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit >> 20)}
    for jit in COMPILERS[backend]:
        for foreseen in (False, True):
            settings = {"jit": jit, "foreseen": foreseen, "limit_mib": limit >> 20}
            yield Case("out_of_memory", backend, settings, 60, False, environment)


def batch_sizes(backend, device):
    models, limit = (("small",), "4MiB") if device == "cpu" else (SEARCHED, "4GiB")
    for model in models:
        settings = {"model": model, "limit": limit}
        yield Case("batch_size", backend, settings, 90, alone=False)


def rematerialized(backend, device):
    models, size = (("small",), 64) if device == "cpu" else (SEARCHED, 32)
    for model in models:
        settings = {"model": model, "batch": size, "jit": COMPILERS[backend][-1]}
        yield Case("rematerialized", backend, settings, 60, alone=False)


def products(backend, device):
    width, depth = (64, 2) if device == "cpu" else (8192, 6)
    for scheme in ("int8", "int8-dynamic", "int4"):
        settings = {"scheme": scheme, "width": width, "depth": depth}
        yield Case("products", backend, settings, 40)


def pieces_of(cases, seconds, at_once):
    """Return the cases in lists that should take no longer than `seconds` each."""
    pieces, left = [], 0.0
    for case in cases:
        cost = case.seconds / (1 if case.alone else at_once)
        if not pieces or cost > left:
            pieces.append([])
            left = seconds
        pieces[-1].append(case)
        left -= cost
    return pieces


class Results:
    """The file of results, one line of JSON a case, which only grows."""

    def __init__(self, path):
        self._path = Path(path)
        self._lock = threading.Lock()
        text = self._path.read_text() if self._path.exists() else ""
        self.rows = {row["case"]: row for row in map(parsed, text.splitlines()) if row}
        self._begin = "\n" if text and not text.endswith("\n") else ""

    def add(self, row):
        with self._lock, self._path.open("a") as file:
            file.write(f"{self._begin}{json.dumps(row)}\n")
            self._begin = ""


def parsed(line):
    """Return the row in a line, None for one that was cut off while it was written."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


class Runner:
    """Runs cases until the time is over, and writes down what each found."""

    def __init__(self, results, machine, device, seconds):
        self._results, self._machine, self._device = results, machine, device
        self._end = time.monotonic() + seconds

    def run(self, cases, at_once):
        for alone, group in itertools.groupby(cases, lambda case: case.alone):
            with ThreadPoolExecutor(1 if alone else at_once) as pool:
                list(pool.map(self._one, group))

    def _one(self, case):
        left = self._end - time.monotonic()
        if left <= 0:
            return
        begin = time.monotonic()
        limit = 3 * case.seconds
        answer = asked(case, self._device, min(limit, left))
        if answer is None and limit >= left:
            print(f"cut off: {case.name}", flush=True)
            return
        answer = answer or {"figures": None, "error": f"no answer in {limit} s"}
        row = {
            "case": case.name,
            "kind": case.kind,
            "backend": case.backend,
            **case.settings,
            **self._machine,
            **answer,
            "seconds": round(time.monotonic() - begin, 1),
        }
        self._results.add(row)
        print(f"{row['seconds']:6.1f} s  {case.name}: {row['error'] or 'done'}")


def asked(case, device, seconds):
    """Return figures and error of a case, None if it took longer than `seconds`."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu_day_cases", case.kind]
    child = subprocess.Popen(
        [*command, json.dumps({**case.settings, "device": device})],
        env={
            **os.environ,
            **ENVIRONMENT[device],
            **case.environment,
            "KERAS_BACKEND": case.backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
        },
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its own children end with it
    )
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return None
    answer = parsed(out.splitlines()[-1]) if out.strip() else None
    if answer:
        return {**answer, "exit": child.returncode}
    error = f"no answer: {' '.join(err.split())[-400:]}"
    return {"figures": None, "error": error, "exit": child.returncode}


def machine(device, commit):
    """Return device, driver, versions and commit, as every row has them."""
    found = {"device": f"CPU, {platform.machine()}, {os.cpu_count()} cores"}
    found |= {"driver": None, "commit": commit or git_commit()}
    if device == "gpu":
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            found["device"] = text_of(pynvml.nvmlDeviceGetName(handle))
            found["driver"] = text_of(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            sys.exit(f"There is no NVIDIA GPU: {error}. Next: add --device cpu.")
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {**found, "versions": versions}


def text_of(value):
    return value.decode() if isinstance(value, bytes) else value


def git_commit():
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def show(pieces, done):
    for number, piece in enumerate(pieces):
        for case in piece:
            row = done.get(case.name)
            state = "to do" if row is None else row["error"] or "done"
            print(f"{number:3}  {case.name}: {state}")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", default="gpu_day.jsonl")
    parser.add_argument("--device", choices=tuple(ENVIRONMENT), default="gpu")
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--piece", type=int, help="one of --list only")
    parser.add_argument("--at-once", type=int, help="cases that share the card")
    parser.add_argument("--list", action="store_true", help="the pieces; run nothing")
    parser.add_argument("--again", action="store_true", help="also what failed")
    parser.add_argument("--commit", help="where there is no git")
    options = parser.parse_args(arguments)
    cases = [
        case
        for case in all_cases(options.device)
        if options.backend is None or case.backend in options.backend
        if options.only in case.name
        if importlib.util.find_spec(case.backend)
    ]
    at_once = options.at_once or AT_ONCE[options.device]
    pieces = pieces_of(cases, 60 * options.minutes, at_once)
    results = Results(options.output)
    if options.list:
        show(pieces, results.rows)
        return
    chosen = cases if options.piece is None else pieces[options.piece]
    retried = options.again
    rows = {n for n, row in results.rows.items() if not (retried and row["error"])}
    todo = [case for case in chosen if case.name not in rows]
    print(f"{len(chosen) - len(todo)} of {len(chosen)} cases are done")
    if todo:
        facts = machine(options.device, options.commit)
        runner = Runner(results, facts, options.device, 60 * options.minutes)
        runner.run(todo, at_once)


if __name__ == "__main__":
    main()
