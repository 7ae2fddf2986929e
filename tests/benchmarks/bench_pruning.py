"""What pruning costs: time against the bare `fit` of the same model.

Run by hand, on an idle machine, about 2 minutes a case on 2 cores:

    python tests/benchmarks/bench_pruning.py [--backend torch] [--case mlp]

As in `bench_monitors.py` the fits of one case run in threads of one process that take
turns of ten steps, and a ratio is the median over the turns of their time over that of
the bare turn beside it; what "bare again" is off 1 is the noise. "static" prunes 80 %
at the first step and masks from then on; "every step" removes a few more weights at
each step, up to 80 % in the last one. Each has processes of its own, because what one
leaves in memory would slow its neighbor down.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import warnings

from bench_monitors import (
    BACKENDS,
    CASES,
    SHAPES,
    STEPS,
    TURNS,
    WARM_UP,
    Turns,
    compiled_network,
    ratio,
    spread,
    turn_callback,
)

WAYS = ("static", "every step")


def pruning(way):
    from kerasmem.callbacks import Pruning
    from kerasmem.compression.prune import Constant, Polynomial, Prune

    rising = Polynomial(begin=0, end=STEPS * TURNS, every=1, unit="step")
    return Pruning(Prune(0.8, schedule=Constant() if way == "static" else rising))


def run_case(case, jit, first, way):
    import numpy as np

    warnings.simplefilter("ignore")
    names = ["bare", "bare again", way]
    names = names[first % len(names) :] + names[: first % len(names)]
    shape, batch_size = SHAPES[case]
    rng = np.random.default_rng(0)
    samples = batch_size * STEPS * TURNS
    x = rng.normal(size=(samples, *shape)).astype("float32")
    y = rng.integers(0, 10, samples)
    turns = Turns(names)
    zeros = []

    def fit(name):
        callbacks = [pruning(way)] if name == way else []
        history = compiled_network(case, jit).fit(
            x,
            y,
            batch_size=batch_size,
            verbose=0,
            shuffle=False,
            callbacks=[*callbacks, turn_callback(turns, name)],
        )
        zeros.extend(history.history.get("sparsity", []))

    threads = [threading.Thread(target=fit, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {
        name: [
            ratio(figures[name], figures["bare"])
            for figures in (turns.seconds, turns.processor)
        ]
        for name in ("bare again", way)
    }
    bare = statistics.median(turns.seconds["bare"][WARM_UP:])
    step_ms = 1e3 * bare / STEPS
    print(json.dumps({"step_ms": step_ms, "zeros": zeros[-1], "ratios": found}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--case", choices=SHAPES)
    parser.add_argument("--jit", type=int)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run_case(options.case, bool(options.jit), options.child, options.way)
        return
    for case, backend, jit in CASES:
        if options.backend not in (None, backend):
            continue
        if options.case not in (None, case):
            continue
        if options.jit not in (None, int(jit)):
            continue
        for way in WAYS if options.way is None else (options.way,):
            processes = range(options.processes)
            show([child(case, backend, jit, i, way) for i in processes], way)


def child(case, backend, jit, first, way):
    command = [sys.executable, __file__, "--child", str(first), "--case", case]
    command += ["--jit", str(int(jit)), "--way", way]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return {"what": f"{backend} {case} jit={jit}", **json.loads(run.stdout)}


def show(found, way):
    step = spread([each["step_ms"] for each in found])
    print(f"{found[0]['what']}: bare step {step} ms")
    for name in ("bare again", way):
        clock, processor = (
            spread([each["ratios"][name][i] for each in found]) for i in (0, 1)
        )
        print(f"  {name:10} x{clock}, processor x{processor}", flush=True)
    print(f"  zeros in the end: {found[0]['zeros']:.3f}")


if __name__ == "__main__":
    main()
