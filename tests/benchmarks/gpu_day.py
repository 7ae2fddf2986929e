"""What only a GPU can answer of all that is here, in pieces of a few minutes.

    python -m tests.benchmarks.gpu_day --list
    python -m tests.benchmarks.gpu_day -o gpu_day.jsonl [--piece 2] [--backend jax]

The tests marked `gpu`, the cost of the monitors, out-of-memory with and without jit,
`kerasmem tune`, and measured peaks beside the estimates. Every case runs in a process
of its own and leaves one line of JSON. A case that the file holds already is left out,
so the same call is repeated until nothing is left; one that failed is tried again with
`--again`. After `--minutes` no process is left: what was cut off counts as not begun.

`--device cpu` runs a tiny version of every case without a GPU; TensorFlow's allocator
then is the one of a GPU. Nothing is imported here but the standard library and the
driver's: a framework is in the children only.
"""

import argparse
import importlib.util
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
BACKENDS = ("tensorflow", "jax", "torch")
COMPILERS = {"tensorflow": (False, True), "jax": (False, True), "torch": (False,)}
MODELS = {
    "tensorflow": "mlp cnn lstm transformer resnet50 mobilenetv2 effnetb0 vgg16",
    "jax": "mlp cnn transformer resnet50",
    "torch": "mlp cnn transformer resnet50",
}
PACKAGES = ("kerasmem", "keras", "tensorflow", "jax", "jaxlib", "torch", "numpy")
MONITOR_PROCESSES = 3
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
    """Return every case for `"gpu"`, or the tiny ones for `"cpu"`."""
    found = [
        case
        for backend in BACKENDS
        for cases in (marked, peaks, out_of_memory, tuning, monitors)
        for case in cases(backend, device)
    ]
    return sorted(found, key=lambda case: case.alone)  # stable: what shares comes first


def marked(backend, device):
    yield Case("marked_tests", backend, {}, 60, alone=False)


def peaks(backend, device):
    tiny = device == "cpu"
    models, most = (["small"], 16) if tiny else (MODELS[backend].split(), 64)
    plain = {"dtype": "float32", "optimizer": "adam", "jit": False}
    others = [{"optimizer": "sgd"}, {"dtype": "mixed_bfloat16"}]
    if True in COMPILERS[backend]:
        others += [{"jit": True}, {"jit": True, "dtype": "mixed_bfloat16"}]
    ways = [{"batch": 16}, *({"batch": most, **way} for way in ({}, *others))]
    for model in models:
        for way in ways[tiny:]:
            settings = {"model": model, **plain, **way}
            yield Case("peak", backend, settings, 40, alone=False)


def out_of_memory(backend, device):
    if device == "cpu" and backend != "tensorflow":
        return  # its allocator has no limit on a CPU
    limit = OOM_LIMIT[device]
    environment = {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit >> 20)}
    for jit in COMPILERS[backend]:
        for foreseen in (False, True):
            settings = {"jit": jit, "foreseen": foreseen, "limit_mib": limit >> 20}
            yield Case("out_of_memory", backend, settings, 90, False, environment)


def tuning(backend, device):
    if device == "cpu":
        settings = {"model": "small", "batch": 8, "only": "accumulation"}
        yield Case("tune", backend, settings, 120)
    else:
        yield Case("tune", backend, {"model": "cnn", "batch": 64, "only": ""}, 300)


def monitors(backend, device):
    tiny = device == "cpu"
    turns, processes = (6, 1) if tiny else (60, MONITOR_PROCESSES)
    for model in ("small",) if tiny else ("cnn", "mlp"):
        for jit in COMPILERS[backend]:
            if backend == "jax" and not jit:
                continue  # op by op, nobody trains so
            for first in range(processes):
                settings = {"model": model, "jit": jit, "first": first, "turns": turns}
                yield Case("monitors", backend, settings, 30)


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
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self._one, [case for case in cases if not case.alone]))
        for case in cases:
            if case.alone:
                self._one(case)

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
