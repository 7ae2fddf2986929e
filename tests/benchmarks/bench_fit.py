"""What `kerasmem.fit` costs where memory suffices: step time against `model.fit`.

Run by hand, on an idle machine, about 2 minutes a case on 2 cores:

    python -m tests.benchmarks.bench_fit [--backend torch] [--case cnn]

Measured as in `bench_monitors`: in turns of ten steps, in several processes. The
case `small` has next to nothing to compute: it shows what a step costs more, in
microseconds, more precisely than a ratio of steps of some milliseconds can.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading

from tests.benchmarks.bench_monitors import (
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


def run_case(case, jit, first):
    import numpy as np

    from kerasmem.memory.fit import fit

    ways = {
        "model.fit": lambda model, **arguments: model.fit(**arguments),
        "model.fit again": lambda model, **arguments: model.fit(**arguments),
        "kerasmem.fit": fit,
    }
    names = list(ways)
    names = names[first % 3 :] + names[: first % 3]
    shape, batch_size = SHAPES[case]
    rng = np.random.default_rng(0)
    samples = batch_size * STEPS * TURNS
    x = rng.normal(size=(samples, *shape)).astype("float32")
    y = rng.integers(0, 10, samples)
    turns = Turns(names)

    def train(way):
        ways[way](
            compiled_network(case, jit),
            x=x,
            y=y,
            batch_size=batch_size,
            verbose=0,
            shuffle=False,
            callbacks=[turn_callback(turns, way)],
        )

    threads = [threading.Thread(target=train, args=[way]) for way in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bare = turns.seconds["model.fit"]
    found = {way: ratio(turns.seconds[way], bare) for way in list(ways)[1:]}
    step = statistics.median(bare[WARM_UP:]) / STEPS
    found["more_us"] = 1e6 * step * (found["kerasmem.fit"] - 1)
    found["step_ms"] = 1e3 * step
    print(json.dumps(found))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--case", choices=SHAPES)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--jit", type=int)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        run_case(options.case, bool(options.jit), options.child)
        return
    small = [("small", backend, jit) for case, backend, jit in CASES if case == "mlp"]
    for case, backend, jit in CASES + small:
        if options.backend not in (None, backend) or options.case not in (None, case):
            continue
        if options.jit not in (None, int(jit)):
            continue
        found = [child(case, backend, jit, i) for i in range(options.processes)]
        print(f"{backend} {case} jit={jit}:")
        for name in found[0]:
            print(f"  {name:16} {spread([each[name] for each in found])}", flush=True)


def child(case, backend, jit, first):
    command = [sys.executable, "-m", "tests.benchmarks.bench_fit"]
    command += ["--child", str(first), "--case", case, "--jit", str(int(jit))]
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(run.stdout)


if __name__ == "__main__":
    main()
