"""What does a step of distillation cost beside one of training the student alone?

Run by hand, about 2 minutes of 2 cores per backend:

    KERAS_BACKEND=jax python tests/benchmarks/bench_distill_step.py

Measured is the processor time of an epoch, the smallest of several, in turns: the
student alone, taught by a teacher that is asked in every step, taught from the cache;
and a forward pass of the teacher (`predict`) over as many batches.

With `--peaks`, on TensorFlow: the most memory in use in a training of each kind
instead, each in a process of its own, as its allocator counts it, the teacher's weights
included.
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km
from kerasmem.graph.clone import clone

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(units):
    hidden = [keras.layers.Dense(units, "relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])
    model.compile("adam", LOSS)
    return model


def ready(teacher, student, data, cache=None):
    """Return a distiller and its data, as `km.distill` makes them."""
    distiller = km.Distiller(teacher, clone(student))
    distiller.compile("adam", LOSS)
    if cache is not None:
        data, _ = distiller.answered(data, None, cache)
    return distiller, data


def samples(options):
    count = options.steps * options.batch_size
    rng = np.random.default_rng(0)
    return rng.random((count, 784), "float32"), rng.integers(0, 10, count)


def peak_of(case, options):
    """Return the peak of a training in MiB; in a process of its own."""
    data, batch_size = samples(options), options.batch_size
    model = network(800)
    if case != "alone":
        with tempfile.TemporaryDirectory() as folder:
            cache = km.distillation.Cache(folder) if case == "cached" else None
            model, data = ready(network(1200), model, data, cache)
    gc.collect()  # of the student that was copied
    monitor = km.callbacks.MemoryMonitor()
    fit = {"batch_size": batch_size, "epochs": 2, "verbose": 0}
    logs = model.fit(*data, callbacks=[monitor], **fit).history
    return logs["device_peak_mib"][-1]


def show_peaks():
    counting = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1"}
    for case in ("alone", "asked", "cached"):
        command = [sys.executable, *sys.argv, "--case", case]
        subprocess.run(command, env=counting, check=True)


def main(options):
    if options.case:
        print(f"{options.case}: {peak_of(options.case, options):.1f} MiB", flush=True)
        return
    if options.peaks:
        show_peaks()
        return
    data = samples(options)
    teacher, student = network(1200), network(800)
    with tempfile.TemporaryDirectory() as folder:
        models = {
            "alone": (student, data),
            "asked": ready(teacher, student, data),
            "cached": ready(teacher, student, data, km.distillation.Cache(folder)),
        }
        runs = {
            name: lambda model=model, x=x, y=y: model.fit(
                x, y, batch_size=options.batch_size, verbose=0
            )
            for name, (model, (x, y)) in models.items()
        }
        runs["teacher"] = lambda: teacher.predict(
            data[0], batch_size=options.batch_size, verbose=0
        )
        best = dict.fromkeys(runs, np.inf)
        for run in runs.values():
            run()
        for _ in range(options.repeats):
            for name, run in runs.items():
                started = time.process_time()
                run()
                best[name] = min(best[name], time.process_time() - started)
    for name, seconds in best.items():
        print(f"{name}: {1000 * seconds / options.steps:.2f} ms a step", flush=True)
    print(f"cached / alone: {best['cached'] / best['alone']:.3f}")
    asked = best["asked"] / (best["alone"] + best["teacher"])
    print(f"asked / (alone + teacher): {asked:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--case", help="for --peaks: the training of this process")
    main(parser.parse_args())
