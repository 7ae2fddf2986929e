"""int8 of a small ResNet that was trained on all of Fashion-MNIST: what it costs.

Run by hand, about 4 minutes on 2 cores:

    python tests/benchmarks/bench_int8_fashion.py [fashion_mnist.npz]

Without a path the data comes from `keras.datasets`.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km
from kerasmem.demo.recipe import (
    Recipe,
    compile_classifier,
    falling_rate,
    residual_network,
)

EPOCHS = 3


def images():
    if len(sys.argv) > 1:
        found = np.load(sys.argv[1])
        return [(found[f"x_{s}"], found[f"y_{s}"]) for s in ("train", "test")]
    return keras.datasets.fashion_mnist.load_data()


def main():
    keras.utils.set_random_seed(0)
    train, test = images()
    recipe = Recipe()
    model = residual_network((28, 28), 10, recipe.widths, recipe.dropout)
    compile_classifier(model, recipe.learning_rate)
    rate = falling_rate(recipe.learning_rate, EPOCHS)
    model.fit(*train, epochs=EPOCHS, batch_size=128, callbacks=[rate], verbose=2)
    report = km.compress(
        model, km.Quantize("int8"), validation_data=test, batch_size=500
    ).report
    before, after = (f.metrics["accuracy"] for f in (report.before, report.after))
    print(
        f"accuracy on {report.samples} test images: float {before:.4f}, int8 "
        f"{after:.4f}, drop {100 * (before - after):+.2f} points; file "
        f"{report.file_ratio:.2f}x smaller, weights in RAM {report.weight_ratio:.2f}x"
    )


if __name__ == "__main__":
    main()
