"""Compressed activations: accuracy against floats, bytes held, and step time.

Run by hand: `python tests/benchmarks/bench_compressed_activations.py accuracy
fashion_mnist.npz` trains a small CNN from the same start with and without, a pair a
seed, and tells both accuracies; `... bytes` measures what waits for the backward pass;
`... time` the step. TensorFlow counts bytes with `TF_CPU_ALLOCATOR_USE_BFC=1`, which
is set here for a child process.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from kerasmem.memory.compress_activations import (
    activation_report,
    compress_activations,
)
from kerasmem.processes import run_in_child
from tests.memory.compress_activations import held

L = keras.layers
TASK = "tests.memory.compress_activations.held"
JOBS = {
    "cnn": {"size": 32, "widths": (32, 64, 64), "channels": 3},
    "transformer": {"length": 128, "width": 64, "blocks": 4},
}
BATCH = {"cnn": 32, "transformer": 8}


def classifier():
    """Return a CNN with batch normalization, dropout and pooling."""
    x = inputs = keras.Input((28, 28, 1))
    for width in (16, 32, 64):
        x = L.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
        x = L.MaxPooling2D()(x)
    x = L.Dropout(0.2)(L.Flatten()(x))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


def accuracy(options):
    """Print the accuracies of pairs that differ in the rounding alone."""
    with np.load(options.path) as found:
        x, y, xt, yt = (found[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    x, xt = (v[..., None].astype("float32") / 255 for v in (x, xt))
    differences = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        keras.utils.set_random_seed(seed)
        model, steps = classifier(), options.epochs * -(-len(x) // 128)
        rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
        adam = keras.optimizers.Adam(rate)
        loss = "sparse_categorical_crossentropy"
        model.compile(adam, loss, metrics=["accuracy"])
        compressed, found = compress_activations(model), []
        for one in (model, compressed):
            keras.utils.set_random_seed(seed)
            one.fit(x, y, batch_size=128, epochs=options.epochs, verbose=0)
            found.append(one.evaluate(xt, yt, batch_size=500, verbose=0)[1])
        differences.append(100 * (found[1] - found[0]))
        moved = activation_report(compressed, (x[:128], y[:128])).gradient_change
        print(
            f"{keras.backend.backend()} seed {seed}: float {found[0]:.4f}, compressed "
            f"{found[1]:.4f}, {differences[-1]:+.2f} points; after training a gradient "
            f"moves by {moved:.2%}",
            flush=True,
        )
    print(f"mean difference {statistics.mean(differences):+.3f} points")


def held_bytes(options):
    """Print bytes between the passes, and on TensorFlow the peaks of whole steps."""
    backend = keras.backend.backend()
    for name, arguments in JOBS.items():
        size = BATCH[name]
        job = {"model": name, "arguments": arguments}
        both = {"jobs": [job], "batch_size": size}
        found = run_in_child(
            f"{TASK}:held_by", both, backend=backend, environment=held.BFC
        )["held"][0]
        ratio = found["plain"] / found["compressed"]
        print(f"{backend} {name} {size}: held {found}, ratio {ratio:.2f}", flush=True)
        if backend != "tensorflow":
            continue
        for jit in (False, True):
            more = {"jit": jit, "batch_sizes": (size, 4 * size)}
            found = run_in_child(
                f"{TASK}:peaks", job | more, backend=backend, environment=held.BFC
            )
            rise = {k: (v[1] - v[0]) // (3 * size) for k, v in found.items()}
            print(f"  peaks jit={jit} {found}, bytes a sample {rise}", flush=True)


def step_time(options):
    """Print the ratio of step times, in turns of five steps."""
    for name, arguments in JOBS.items():
        model = held.MODELS[name](**arguments)
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
        models = (model, compress_activations(model))
        x, y = held.batch(model, BATCH[name])
        ratios = []
        for _ in range(options.rounds + 1):
            seconds = []
            for one in models:
                start = time.perf_counter()
                for _ in range(5):
                    one.train_on_batch(x, y)
                seconds.append(time.perf_counter() - start)
            ratios.append(seconds[1] / seconds[0])
        middle = statistics.median(ratios[1:])
        print(f"{keras.backend.backend()} {name}: step time {middle:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("accuracy", "bytes", "time"))
    parser.add_argument("path", nargs="?", help="an .npz with Fashion-MNIST")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    {"accuracy": accuracy, "bytes": held_bytes, "time": step_time}[options.what](
        options
    )


if __name__ == "__main__":
    main()
