"""Run by a test in a process of its own: prints peaks of training, in bytes, as JSON.

    python gradient_monitor_peak.py WIDTHS

WIDTHS is a JSON list of networks, each a list of layers' widths. Of each network there
is the peak without a monitor, with `every=1` and with `every=10`, above what was in use
before. With one thread, because with more the peak depends on who comes first.
"""

import gc
import json
import statistics
import sys

import keras
import numpy as np
import tensorflow as tf

from kerasmem.callbacks import GradientMonitor

BATCH_SIZE = 16
STEPS = 4
EPOCHS = 9


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


def peak(widths, every):
    """Return the usual peak of an epoch; EVERY is 0 for no monitor."""
    keras.utils.clear_session()
    gc.collect()
    before = in_use()["current"]
    model, peaks = network(widths), Peaks()
    x = np.ones((BATCH_SIZE * STEPS, 256), "float32")
    y = np.ones((BATCH_SIZE * STEPS, widths[-1]), "float32")
    model.compile("adam", "mse", jit_compile=False)
    monitors = [GradientMonitor(every=every)] if every else []
    callbacks = [*monitors, peaks]
    model.fit(x, y, BATCH_SIZE, epochs=1 + EPOCHS, verbose=0, callbacks=callbacks)
    # Input pipelines come and go as they like.
    return statistics.median(peaks.bytes) - before


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    networks = json.loads(sys.argv[1])
    json.dump(
        [[peak(widths, n) for n in (0, 1, 10)] for widths in networks], sys.stdout
    )
