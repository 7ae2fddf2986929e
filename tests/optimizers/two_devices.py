"""Trains on one device and on two, in a process of its own: prints JSON."""

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import keras
import numpy as np

from kerasmem.optimizers import Adafactor, Adam8bit


def weights(make):
    """Return the weights after three steps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 40)).astype("float32")
    y = rng.normal(size=(24, 104)).astype("float32")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(104)])
    model.compile(make(), "mse")
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in model.get_weights()])


OPTIMIZERS = {
    "Adam8bit with scaled loss": lambda: keras.optimizers.LossScaleOptimizer(
        Adam8bit(0.01)
    ),
    "Adafactor": lambda: Adafactor(0.1),
}


def differences(scope):
    """Return the largest difference between weights, per optimizer."""
    found = {}
    for name, make in OPTIMIZERS.items():
        alone = weights(make)
        with scope():
            together = weights(make)
        found[name] = float(np.abs(together - alone).max())
    return found


def two_replicas():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, halves)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope


def two_shards():
    devices = keras.distribution.list_devices("cpu")
    assert len(devices) == 2
    return keras.distribution.DataParallel(devices=devices).scope


if __name__ == "__main__":
    backend = keras.backend.backend()
    scope = two_replicas() if backend == "tensorflow" else two_shards()
    json.dump(differences(scope), sys.stdout)
