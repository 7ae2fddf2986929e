"""Plans of compiled steps against peaks that an H200 had, and what they take here.

    python -m tests.benchmarks.bench_plans FACTS [MODEL...] [--backend NAME]

FACTS is a folder with `peaks.jsonl` and `cases.py` of the measured trainings. JAX tells
only the peak of a process's life: where trials of the first step made it (mlp, cnn) the
first steps are compared. Needs kerasmem[plans].
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import keras

import kerasmem as km

FIRST_STEP = {("jax", "mlp"), ("jax", "cnn")}
HAS_NO_PLAN = {"lstm"}


def rows(facts, models, backend):
    for line in (facts / "peaks.jsonl").read_text().splitlines():
        row = json.loads(line)
        wanted = not models or row["model"] in models
        if row["jit"] and wanted and backend in (None, row["backend"]):
            yield row


def cases(facts):
    spec = importlib.util.spec_from_file_location("cases", facts / "cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build


def estimate(build, row, method, **options):
    keras.utils.clear_session()
    if row["dtype"] != "float32":
        keras.config.set_dtype_policy(row["dtype"])
    model, _, _ = build(row["model"])
    keras.config.set_dtype_policy("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(row["opt"], loss)
    before = time.perf_counter(), processor_seconds()
    found = km.estimate_memory(
        model,
        row["batch"],
        backend=row["backend"],
        jit_compile=True,
        method=method,
        **options,
    )
    after = time.perf_counter(), processor_seconds()
    return found, after[0] - before[0], after[1] - before[1]


def processor_seconds():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("facts", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--backend")
    options = parser.parse_args()
    build, errors = cases(options.facts), {}
    print("| backend, model | H200 | plan | error | interval | fast method | seconds |")
    print("|---|---|---|---|---|---|---|")
    for row in rows(options.facts, options.models, options.backend):
        key = row["backend"], row["model"]
        if row["model"] in HAS_NO_PLAN:
            continue
        fast, _, _ = estimate(build, row, "analytic")
        found, wall, cpu = estimate(build, row, "plan", device="h200")
        is_first = key in FIRST_STEP
        truth = row["steady"]["peak"]
        peak = found.first_step_bytes if is_first else found.peak_bytes
        ends = (
            (found.first_step_low_bytes, found.first_step_high_bytes)
            if is_first
            else (found.low_bytes, found.high_bytes)
        )
        fast = fast.first_step_bytes if is_first else fast.peak_bytes
        errors[key] = peak / truth - 1
        note = " (first step)" if is_first else ""
        holds = "" if ends[0] <= truth <= ends[1] else ", misses"
        print(
            f"| {' '.join(key)}{note} | {truth / 1e6:.1f} | {peak / 1e6:.1f} "
            f"| {errors[key]:+.1%} | {ends[0] / truth - 1:+.0%} to "
            f"{ends[1] / truth - 1:+.0%}{holds} | {fast / truth - 1:+.1%} "
            f"| {wall:.0f}, {cpu:.0f} of processors |",
            flush=True,
        )
    for backend in ("tensorflow", "jax"):
        own = [abs(e) for (b, _), e in errors.items() if b == backend]
        if own:
            median, worst = statistics.median(own), max(own)
            print(f"{backend}: median {median:.2%}, worst {worst:.2%} of {len(own)}")
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"largest child: {most / 2**20:.0f} MiB resident")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # nothing comes from an earlier run
        main()
