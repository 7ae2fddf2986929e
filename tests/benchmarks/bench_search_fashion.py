"""`max_drop=0.005` on Fashion-MNIST: does it hold on images that the search never saw?

Run by hand; an hour or more per seed on 2 cores, less with `--minutes`:

    python tests/benchmarks/bench_search_fashion.py [fashion_mnist.npz] [--seeds 0 1]

For every seed a small network is trained on the 60,000 training images and searched
for its smallest file. The search has the training images, of which it holds a fifth
out, and the drop is measured on the 10,000 test images. Without a path the data comes
from `keras.datasets`. `--images` takes fewer of them, for a look at whether it runs.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import kerasmem as km
from kerasmem.compression.judge import drop_of
from kerasmem.errors import TargetError


def images(path, count):
    if path is None:
        splits = keras.datasets.fashion_mnist.load_data()
    else:
        found = np.load(path)
        splits = [(found[f"x_{s}"], found[f"y_{s}"]) for s in ("train", "test")]
    return [
        (x[:count, ..., None].astype("float32") / 255, y[:count]) for x, y in splits
    ]


def network(train, epochs, seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(*train, epochs=epochs, batch_size=128, verbose=0)
    return model


def searched(model, train, test, options, seed):
    try:
        return km.compress(
            model,
            max_drop=options.max_drop,
            data=train,
            validation_data=test,
            fine_tune_epochs=options.fine_tune_epochs,
            time_budget=60 * options.minutes,
            batch_size=128,
            coding="entropy",
            seed=seed,
        )
    except TargetError as error:
        return error.result  # the drop is told all the same, and counts against it


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--images", type=int)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--fine-tune-epochs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--max-drop", type=float, default=0.005)
    options = parser.parse_args()
    train, test = images(options.path, options.images)
    held = []
    for seed in options.seeds:
        model = network(train, options.epochs, seed)
        report = searched(model, train, test, options, seed).report
        chosen = report.search.trials[report.search.chosen]
        held.append(drop_of(report) <= options.max_drop)
        print(
            f"seed {seed}: {chosen.name}, file {report.file_ratio:.1f}x smaller, "
            f"accuracy {report.before.metrics['accuracy']:.4f} -> "
            f"{report.after.metrics['accuracy']:.4f}, drop {drop_of(report):+.4f} on "
            f"{report.samples} test images (in the search {chosen.drop:+.4f} "
            f"± {chosen.drop_error:.4f}); {len(report.search.trials)} trials, "
            f"{report.search.stopped}",
            flush=True,
        )
    print(f"within max_drop={options.max_drop}: {sum(held)} of {len(held)} seeds")


if __name__ == "__main__":
    main()
