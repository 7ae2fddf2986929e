"""Run by a test in processes of its own: prints the peak of training, in bytes.

    python gradient_monitor_peak.py EVERY WIDTH...

EVERY is 0 for training without a monitor. With one thread, because with more the peak
depends on who comes first.
"""

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


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    every, *widths = map(int, sys.argv[1:])
    model, peaks = network(widths), Peaks()
    x = np.ones((BATCH_SIZE * STEPS, 256), "float32")
    y = np.ones((BATCH_SIZE * STEPS, widths[-1]), "float32")
    model.compile("adam", "mse", jit_compile=False)
    monitors = [GradientMonitor(every=every)] if every else []
    callbacks = [*monitors, peaks]
    model.fit(x, y, BATCH_SIZE, epochs=1 + EPOCHS, verbose=0, callbacks=callbacks)
    # Input pipelines come and go as they like.
    sys.stdout.write(str(statistics.median(peaks.bytes)))


if __name__ == "__main__":
    main()
