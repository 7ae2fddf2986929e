"""Run by a test in a process of its own: prints peaks of training, as JSON.

With one thread, because with more the peak depends on who comes first.
"""

import gc
import json
import statistics
import sys
from itertools import pairwise

import keras
import numpy as np
import tensorflow as tf

from kerasmem.callbacks import GradientMonitor

BATCH_SIZE = 16
STEPS = 4
EPOCHS = 15
WIDTHS = {"stacked": [256] * 12, "wide": [512, 2048, 16]}
WAYS = {
    "bare": list,
    "every=1": lambda: [GradientMonitor(every=1)],
    "every=10": lambda: [GradientMonitor()],
}


def network(widths):
    keras.utils.set_random_seed(11)
    hidden = [keras.layers.Dense(width, activation="relu") for width in widths]
    return keras.Sequential([keras.Input((256,)), *hidden])


class Peaks(keras.callbacks.Callback):
    """Keeps the peak of every epoch but the first, with all that tracing allocates."""

    def __init__(self):
        super().__init__()
        self.bytes = []

    def on_epoch_begin(self, epoch, logs=None):
        tf.config.experimental.reset_memory_stats("CPU:0")

    def on_epoch_end(self, epoch, logs=None):
        if epoch:
            self.bytes.append(in_use()["peak"])


def in_use():
    return tf.config.experimental.get_memory_info("CPU:0")


def peak(widths, callbacks):
    """Return the most bytes that an epoch takes beside what is there already.

    The median over epochs, because input pipelines come and go as they like.
    """
    keras.utils.clear_session()
    gc.collect()
    before = in_use()["current"]
    model, peaks = network(widths), Peaks()
    x = np.ones((BATCH_SIZE * STEPS, 256), "float32")
    y = np.ones((BATCH_SIZE * STEPS, widths[-1]), "float32")
    model.compile("adam", "mse", jit_compile=False)
    callbacks = [*callbacks, peaks]
    model.fit(x, y, BATCH_SIZE, epochs=1 + EPOCHS, verbose=0, callbacks=callbacks)
    return statistics.median(peaks.bytes) - before


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    found = {}
    for name, widths in WIDTHS.items():
        peak(widths, [])  # what the first one allocates for good
        peak(widths, [])  # what the first one allocates for good
        found[name] = {
            "largest_gradient": 4 * max(a * b for a, b in pairwise([256, *widths]))
        }
        for way, monitors in WAYS.items():
            found[name][way] = peak(widths, monitors())
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
