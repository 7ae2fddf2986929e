"""Run by a test in a process of its own: prints what monitored training did, as JSON.

TensorFlow's deterministic ops and logical devices cannot be switched off again.
"""

import json
import sys
import warnings

import keras
import numpy as np

from kerasmem import backends
from kerasmem.callbacks import GradientMonitor, MemoryMonitor

warnings.simplefilter("ignore")


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


def two_replicas():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, halves)
    x = np.random.default_rng(3).normal(size=(8, 6)).astype("float32")
    y = np.random.default_rng(4).normal(size=(8, 3)).astype("float32")

    def norms():
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.01)
        model.compile(optimizer, loss="mse", jit_compile=False)
        monitor = GradientMonitor(every=1)
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[monitor])
        record = monitor.records[0]
        return [record.norm, record.steps, *(row.norm for row in record.variables)]

    alone = norms()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        together = norms()
    return {"alone": alone, "together": together}


if __name__ == "__main__":
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        replicas = two_replicas()
        tf.config.experimental.enable_op_determinism()
    else:
        replicas = None
    complete = [reading.complete for reading in backends.current().device_memory()]
    found = {"is_equal": bit_equal(), "replicas": replicas, "complete": complete}
    json.dump(found, sys.stdout)
