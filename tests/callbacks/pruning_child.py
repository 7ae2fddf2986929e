"""Prunes on two devices that train together, where the backend has such: prints JSON.

TensorFlow mirrors over two parts of the CPU, JAX shards the batch over two; torch
trains on one device.
"""

import json
import os
import sys
from contextlib import nullcontext

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.prune import RigL, Splicing
from kerasmem.graph.values import to_numpy

CHOICES = {
    "magnitude": km.Prune(0.75),
    "taylor": km.Prune(0.75, criterion="taylor"),
    "rigl": km.Prune(0.75, schedule=RigL(every=0.2)),
    "splicing": km.Prune(0.75, schedule=Splicing()),
}


def two_devices():
    backend = keras.backend.backend()
    if backend == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    if backend != "tensorflow":
        return nullcontext()
    import tensorflow as tf

    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, halves)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()


def pruned(choice):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(20), keras.layers.Dense(3)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    seen = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kernel = to_numpy(self.model.layers[0].kernel)
            seen.append(float((kernel == 0).mean()))

    callbacks = [Look(), km.callbacks.Pruning(choice)]
    model.fit(x, x[:, :3], batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
    return seen


if __name__ == "__main__":
    with two_devices():
        found = {name: pruned(choice) for name, choice in CHOICES.items()}
    json.dump(found, sys.stdout)
