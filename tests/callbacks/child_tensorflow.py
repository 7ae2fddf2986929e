"""Run in a process of its own, whose allocator counts everything: prints JSON.

Two logical CPU devices, one thread, so that every run allocates alike. All kernels
are of one size: an allocator that reuses a block for a smaller request wastes the rest,
and then nobody can tell by arithmetic what is in use.
"""

import gc
import json
import os
import sys

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"

import keras
import tensorflow as tf

from kerasmem.callbacks import MemoryMonitor
from tests.two_devices import split_cpu

UNITS = 1001
LAYERS = 2
EPOCHS = 3
LEAK_BYTES = 4 * 2**20


def in_use():
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


def batches(rows):
    ones = tf.ones((rows, UNITS))
    return tf.data.Dataset.from_tensors((ones, ones))


def network(units=UNITS):
    layers = [
        keras.layers.Dense(n, use_bias=False, kernel_initializer="ones")
        for n in (units, UNITS)
    ]
    model = keras.Sequential([keras.Input((UNITS,)), *layers])
    model.compile("adam", "mse")
    return model


def settle(data):
    """Have the process allocate what it needs once, and one large free block."""
    network(units=8).fit(data, epochs=2, verbose=0, callbacks=[MemoryMonitor()])
    tf.zeros((2**26,))
    gc.collect()
    return in_use()


def figures(monitor, before):
    return [
        {
            device.name: {
                "current": device.current_bytes - before,
                "peak": device.peak_bytes - before,
                "shares_with": device.shares_with,
            }
            for device in record.devices
        }
        for record in monitor.records
    ]


def counted(data):
    before = settle(data)
    model, monitor = network(), MemoryMonitor()
    history = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[monitor]).history
    return {"records": figures(monitor, before), "before": before, "history": history}


def mirrored():
    data = batches(rows=2)
    before = settle(data)
    seen, monitor = [], MemoryMonitor()

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(in_use() - before)

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = network()
    options = {"epochs": EPOCHS, "verbose": 0, "callbacks": [monitor, Look()]}
    history = model.fit(data, **options).history
    return {
        "records": figures(monitor, before),
        "before": before,
        "seen": seen,
        "history": history,
    }


def leak():
    kept = []

    class Keep(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch >= 3:
                kept.append(tf.ones((LEAK_BYTES // 4,)))

    model, monitor = network(units=8), MemoryMonitor(host=False)
    options = {"epochs": 14, "verbose": 0, "callbacks": [monitor, Keep()]}
    model.fit(batches(rows=1), **options)
    return {"findings": [finding.text for finding in monitor.findings]}


if __name__ == "__main__":
    split_cpu()
    parts = {"counted": lambda: counted(batches(rows=1)), "mirrored": mirrored}
    json.dump(
        {name: part() for name, part in (parts | {"leak": leak}).items()}, sys.stdout
    )
