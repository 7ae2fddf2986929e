"""A search on Ray, and in one process: the same result, and what each takes.

Run by hand, a few minutes on 2 cores, with `pip install kerasmem[ray]`:

    python tests/benchmarks/bench_search_ray.py [--samples 200] [--epochs 1]

Measured 2026-11-22 with Ray 2.60 on 2 shared cores, TensorFlow, 200 samples: the same
62 trials, the same choice, the same weights bit for bit; 54 s in one process, 80 s on
Ray, of which most is the start of Ray and of TensorFlow in every worker. It pays where
trials take longer than that, and on more cores.
"""

import argparse
import os
import time
from dataclasses import replace

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import kerasmem as km


def clouds(count):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 12)) * 1.5
    y = rng.integers(0, 3, count)
    return (centers[y] + rng.normal(size=(count, 12))).astype("float32"), y


def network(data):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(40, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(16, activation="relu"),
            layers.Dense(3, activation="softmax"),
        ]
    )
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    model.fit(*data, epochs=4, verbose=0)
    return model


def searched(model, train, test, epochs, parallel):
    begin = time.monotonic()
    result = km.compress(
        model,
        max_drop=0.2,
        data=train,
        validation_data=test,
        fine_tune_epochs=epochs,
        batch_size=20,
        seed=3,
        verbose=0,
        parallel=parallel,
    )
    search = result.report.search
    print(
        f"{parallel or 'one process'}: {time.monotonic() - begin:.0f} s, "
        f"{len(search.trials)} trials, {search.trials[search.chosen].name}",
        flush=True,
    )
    trials = [replace(trial, seconds=0.0) for trial in search.trials]
    return trials, result.model.get_weights()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    x, y = clouds(options.samples + 100)
    train, test = (x[:-100], y[:-100]), (x[-100:], y[-100:])
    model = network(train)
    alone, weights = searched(model, train, test, options.epochs, None)
    spread, others = searched(model, train, test, options.epochs, "ray")
    print("the same trials:", alone == spread)
    print("the same weights:", all(map(np.array_equal, weights, others)))


if __name__ == "__main__":
    main()
