"""Run by a test in a process of its own: prints what monitored training did, as JSON.

TensorFlow's deterministic ops and logical devices cannot be switched off again. torch
has nothing of the kind: there the test calls `found()`.
"""

import json
import sys
import warnings

import keras
import numpy as np

from kerasmem import backends
from kerasmem.callbacks import GradientMonitor, MemoryMonitor


def network():
    keras.utils.set_random_seed(11)
    layers = keras.layers
    inputs = keras.Input((8, 8, 3))
    hidden = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    shortcut = hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    hidden = layers.Conv2D(4, 3, padding="same", activation="relu")(hidden)
    hidden = layers.Dropout(0.3)(layers.Add()([hidden, shortcut]))
    outputs = layers.Dense(3)(layers.GlobalAveragePooling2D()(hidden))
    return keras.Model(inputs, outputs)


def trained(callbacks, batch_size=8):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(16, 8, 8, 3)).astype("float32")
    y = rng.normal(size=(16, 3)).astype("float32")
    model = network()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    model.compile(optimizer, loss="mse", jit_compile=False)
    model.fit(x, y, batch_size=batch_size, verbose=0, callbacks=callbacks)
    return [weight.numpy().tolist() for weight in model.weights]


def bit_equal():
    plain = trained([])
    return trained([MemoryMonitor(), GradientMonitor(every=2)]) == plain


def norms():
    """Return figures of a `fit` of eight steps, and of one of one step, clipped."""
    return [*figures(every=3, steps=8), *figures(every=1, steps=1, clipnorm=0.01)]


def figures(every, steps, clipnorm=None):
    """Return the norm, the number of steps, and some of every variable."""
    rng = np.random.default_rng(3)
    x, y = (rng.normal(size=(8 * steps, n)).astype("float32") for n in (6, 3))
    keras.utils.set_random_seed(11)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=clipnorm)
    compiled = keras.backend.backend() == "jax"
    model.compile(optimizer, loss="mse", jit_compile=compiled)
    monitor = GradientMonitor(every=every)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[monitor])
    (record,) = monitor.records
    found = [record.norm, record.steps]
    for row in record.variables:
        found += [row.steps, row.norm]
        # Under a strategy Keras clips what each replica has: a larger update.
        found += [] if clipnorm else [row.update_ratio or 0.0]
    return found


def two_devices():
    """Return the norms of a `fit` on one device and on two, of JAX."""
    devices = keras.distribution.list_devices("cpu")
    alone = norms()
    both = keras.distribution.DataParallel(devices=devices)
    with both.scope():
        together = norms()
    return {"alone": alone, "together": together, "devices": len(devices)}


def two_replicas():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, halves)
    alone = norms()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        together = norms()
    return {"alone": alone, "together": together, "devices": 2}


def found():
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        replicas = two_replicas()
        tf.config.experimental.enable_op_determinism()
    else:
        replicas = two_devices() if keras.backend.backend() == "jax" else None
    complete = [reading.complete for reading in backends.current().device_memory()]
    return {"is_equal": bit_equal(), "replicas": replicas, "complete": complete}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump(found(), sys.stdout)
