"""Run by a test in processes of its own: prints peaks of training, as JSON.

    python gradient_monitor_peak.py EVERY

EVERY is 0 for training without a monitor. With one thread, because with more the peak
depends on who comes first.
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
WIDTHS = ([512] * 6, [512, 2048, 16])


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
    every = int(sys.argv[1])
    monitors = [GradientMonitor(every=every)] if every else []
    json.dump([peak(widths, monitors) for widths in WIDTHS], sys.stdout)


if __name__ == "__main__":
    main()
