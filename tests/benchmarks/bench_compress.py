"""How long `km.compress` and saving its result take, beside stock Keras in one run.

Run by hand, some minutes, on two quiet cores:

    taskset -c 0,1 python -m tests.benchmarks.bench_compress

ResNet50 without weights of its own. Each round does everything once, in turns, so that
a machine that changes its speed does so for all; what is printed are medians. Targets:
int8 and pruning at most 4 times Keras's save and load; channels 3 times their own
pruning; saving a result 1.5 times `copyfile` and 0.2 s; in memory, 2.2 copies of the
weights, the model itself among them.

With `--memory`, the most memory of a process that does one thing to a model in memory,
less what it takes to have imported everything.
"""

import argparse
import gc
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.chain import run_steps
from kerasmem.compression.technique import Context

STEPS = {
    "int8": km.Quantize("int8"),
    "prune": km.Prune(0.8),
    "channels": km.PruneChannels(0.3),
}


def seconds(call):
    begin = time.perf_counter()
    found = call()
    return time.perf_counter() - begin, found


def one_round(folder, model, names, times):
    path = folder / "stock.keras"
    times["keras save"].append(seconds(lambda: model.save(path))[0])
    times["keras load"].append(seconds(lambda: keras.models.load_model(path))[0])
    for name in names:
        taken, result = seconds(lambda: km.compress(path, STEPS[name]))  # noqa: B023
        times[f"compress {name}"].append(taken)
        if name == "channels":
            alone = seconds(lambda: run_steps(model, [STEPS["channels"]], Context()))
            times["channels alone"].append(alone[0])
        times[f"save {name}"].append(
            seconds(lambda: result.save(folder / "small.keras"))[0]  # noqa: B023
        )
        copy = seconds(
            lambda: shutil.copyfile(folder / "small.keras", folder / "copy.keras")
        )
        times[f"copyfile {name}"].append(copy[0])


def print_all(times):
    found = {name: statistics.median(each) for name, each in times.items()}
    stock = found["keras save"] + found["keras load"]
    for name, value in found.items():
        told = f"{name:20} {value:7.3f} s"
        if name.startswith("compress"):
            told += f", {value / stock:.2f} times Keras's save and load"
        if name == "compress channels":
            told += f", {value / found['channels alone']:.2f} times itself alone"
        if name.startswith("save"):
            limit = 1.5 * found[name.replace("save", "copyfile")] + 0.2
            told += f", limit {limit:.3f} s"
        print(told, flush=True)


def resident():
    """Return the bytes of this process that are in no file."""
    with open("/proc/self/smaps_rollup") as file:  # noqa: PTH123
        lines = dict(line.split(":", 1) for line in file if ":" in line[:30])
    return 1024 * int(lines["Anonymous"].split()[0])


def peak(name):
    """Print the most memory that a compression takes, in copies of the weights."""
    small = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    km.compress(small, STEPS[name] if name != "channels" else STEPS["prune"])
    # What TensorFlow keeps for itself once it has drawn a large weight: 130 MB.
    keras.layers.Dense(4000).build((None, 4000))
    gc.collect()
    begin, most, done = resident(), [0], threading.Event()

    def watch():
        while not done.wait(0.005):
            most[0] = max(most[0], resident())

    inputs = x = keras.Input((4000,))
    for _ in range(5):
        x = keras.layers.Dense(4000)(x)
    model = keras.Model(inputs, x)
    weights = 4 * model.count_params()
    alone = (resident() - begin) / weights
    thread = threading.Thread(target=watch)
    thread.start()
    result = km.compress(model, STEPS[name])
    done.set()
    thread.join()
    copies = (most[0] - begin) / weights
    print(
        f"{name:20} {copies:.2f} copies of {weights / 1e6:.0f} MB, the model alone "
        f"{alone:.2f}",
        flush=True,
    )
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        peak(options.peak)
        return
    if options.memory:
        for name in options.steps:
            if name != "channels":
                command = [sys.executable, "-m", "tests.benchmarks.bench_compress"]
                subprocess.run([*command, "--peak", name], check=True)
        return
    times = defaultdict(list)
    model = keras.applications.ResNet50(weights=None)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds + 1):
            # The first round opens files of each class of layers for the first time.
            kept = times if number else defaultdict(list)
            one_round(Path(folder), model, options.steps, kept)
            if not number:
                print("the first round, which is not counted")
                print_all(kept)
        print(f"medians of {options.rounds} rounds")
        print_all(times)
        check_fitted(Path(folder))


def check_fitted(folder):
    """Fit what was compressed, and find what was fitted in the file."""
    model = keras.applications.ResNet50(
        weights=None, input_shape=(32, 32, 3), classes=2
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    result = km.compress(model, km.Prune(0.8))
    result.model.fit(np.ones((4, 32, 32, 3)), np.ones(4), verbose=0)
    result.save(folder / "fitted.keras")
    loaded = keras.models.load_model(folder / "fitted.keras")
    for one, other in zip(result.model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    print("what was fitted is in the file")


if __name__ == "__main__":
    main()
