"""CPU time and memory of every verb and command, as ratios to Keras in the same run.

Run by hand, some hours on 2 cores; cells that are in the results file are not repeated:

    OPENBLAS_NUM_THREADS=1 python -m tests.benchmarks.bench_costs costs.jsonl
        [--models NAME ...] [--verbs NAME ...] [--runs 3] [--limit 900] [--growth]

Each cell is a child process. A verb runs once on a tiny model, so that imports do not
count, then up to three times on a model that is loaded anew; a run above 60 CPU seconds
is the last. Time is CPU time of the process and its children. Memory is the peak of
resident memory above that before the verb, where the model is loaded. Both are relative
to `load_model` and `save` of Keras, those of commands to a process that does the same;
`BESIDE` has the exceptions. `--growth` prints CPU seconds for 20 to 1,280 layers, and
the slope of their logarithms between the last two sizes.
"""

import argparse
import gc
import importlib
import json
import math
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from kerasmem.errors import KerasMemWarning
from tests.benchmarks.cost_cells import (
    BESIDE,
    COMMANDS,
    KERAS,
    LENGTH,
    MAKERS,
    MODELS,
    PROCESS,
    RESAVE,
    SIZES,
    VERBS,
    WITH_LENGTH,
    Case,
)

ENOUGH_SECONDS = 60
FORK = multiprocessing.get_context("forkserver")

CHILD = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss)"""


def run_command(verb, case):
    """Return CPU seconds and peak bytes of a command, started by a small process."""
    places = {"model": case.path, "folder": case.folder, "run": case.folder / "run"}
    places |= {"data": case.folder / "data.npz", "copy": case.folder / "copy.keras"}
    if verb == PROCESS:
        command = ["-c", RESAVE, case.path, case.folder / "keras.keras"]
    else:
        words = [word.format(**places) for word in COMMANDS[verb].split()]
        if case.length and words[0] in WITH_LENGTH:
            words += ["--input-shape", str(LENGTH)] * 3
        command = ["-P", "-m", "kerasmem", *words]
    child = [sys.executable, "-c", CHILD, sys.executable, *map(str, command)]
    used = subprocess.run(child, capture_output=True, text=True, check=False)
    if used.returncode:
        raise RuntimeError(used.stderr.strip().splitlines()[-2])
    return [float(each) for each in used.stdout.split()]


def write_inputs(verb, case):
    """Write the samples or the run folder that a command reads."""
    if "{run}" in COMMANDS.get(verb, ""):
        VERBS["fit, both monitors"](case)()
    shutil.copy(case.path, case.folder / "copy.keras")
    x, y = case.samples()
    parts = {f"x_{key}": x[key] for key in x} if case.length else {"x": x}
    np.savez(case.folder / "data.npz", y=y, **parts)


def run_verb(verb, case):
    """Return CPU seconds and peak bytes above those before a verb of this process."""
    work = VERBS[verb](case)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    before, start = memory("VmRSS"), sum(os.times()[:4])
    work()
    return sum(os.times()[:4]) - start, memory("VmHWM") - before


def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(n.split()[1]) for n in lines if n.startswith(name))


def run_cell(name, verb, folder, runs):
    """Return what a cell costs: CPU seconds of each run, and the largest peak."""
    warnings.simplefilter("ignore", KerasMemWarning)
    if name == "BERT":
        importlib.import_module("keras_hub")
    run = run_verb if verb in VERBS else run_command
    if run is run_verb:
        run(verb, Case("tiny", folder))
    else:
        write_inputs(verb, Case(name, folder))
    found = []
    while len(found) < runs and (not found or found[-1][0] < ENOUGH_SECONDS):
        found.append(run(verb, Case(name, folder)))
    seconds, peaks = zip(*found, strict=True)
    return {"cpu": round(statistics.median(seconds), 3), "peak": max(peaks)}


def in_child(name, verb, folder, options):
    """Run a cell in a child process and return what it measured or why it failed."""
    for each in ("tiny", name):  # a process that builds a model keeps its free memory
        maker = FORK.Process(target=Case, args=(each, folder))
        maker.start()
        maker.join()
    reader, writer = FORK.Pipe(duplex=False)
    child = FORK.Process(target=send, args=(writer, name, verb, folder, options))
    child.start()
    writer.close()
    found = {"limit": options.limit}
    try:
        if reader.poll(10 * options.limit):
            found = reader.recv()
    except EOFError:  # it was killed
        pass
    child.kill()
    child.join()
    return found


def send(writer, name, verb, folder, options):
    """Send what a cell measured, or its error, to the parent."""
    # In a session of its own
    seconds = int(options.limit)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        writer.send(run_cell(name, verb, folder, options.runs))
    except Exception as error:  # noqa: BLE001
        text = str(error).splitlines()[0][:200] if str(error) else ""
        writer.send({"error": f"{type(error).__name__}: {text}"})


def measure_all(path, options):
    """Measure all cells that the results file does not contain, and return all."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = {(name, verb): cell for name, verb, cell in map(json.loads, lines)}
    with tempfile.TemporaryDirectory() as folder, path.open("a") as file:
        for verb in options.verbs:
            for name in options.models:
                known = results.get((name, verb), {"limit": 0})
                if known.get("limit", math.inf) >= options.limit:
                    continue
                cell = in_child(name, verb, Path(folder), options)
                results[name, verb] = cell
                line = json.dumps([name, verb, cell])
                print(line, flush=True)
                print(line, file=file, flush=True)
    return results


def ratio(results, name, verb, key):
    """Return a figure of a cell relative to that of `BESIDE`."""
    cells = [results.get((name, each), {}) for each in (verb, BESIDE.get(verb, KERAS))]
    ours, keras_ = (cell.get(key, math.nan) for cell in cells)
    return ours / keras_


def growth(results, name, verb):
    """Return CPU seconds of a size, or the slope between the last two sizes."""
    if name != "slope":
        return results.get((name, verb), {}).get("cpu", math.nan)
    last, before = (growth(results, size, verb) for size in (SIZES[-1], SIZES[-2]))
    return math.log(last / before) / math.log(int(SIZES[-1]) / int(SIZES[-2]))


def print_table(names, verbs, figure):
    print(f"\n| Verb | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    for verb in verbs:
        cells = [figure(name, verb) for name in names]
        texts = ["" if math.isnan(each) else f"{each:.2f}" for each in cells]
        print(f"| {verb} | {' | '.join(texts)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--models", nargs="+", choices=MAKERS)
    verbs = [*VERBS, PROCESS, *COMMANDS]
    parser.add_argument("--verbs", nargs="+", choices=verbs, default=verbs)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=900, help="CPU seconds of a cell"
    )
    parser.add_argument("--growth", action="store_true")
    options = parser.parse_args()
    FORK.set_forkserver_preload(["kerasmem.public"])
    options.models = options.models or (SIZES if options.growth else [*MODELS])
    results = measure_all(options.results, options)
    if options.growth:
        print_table([*SIZES, "slope"], options.verbs, partial(growth, results))
        return
    for key in ("cpu", "peak"):
        figure = partial(ratio, results, key=key)
        print_table(options.models, options.verbs, figure)


if __name__ == "__main__":
    main()
