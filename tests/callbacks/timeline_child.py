"""Trains small models under `MemoryTimeline` and pickles what it saw.

A process of its own: TensorFlow's CPU allocator counts only if its environment says so.
Usage: python timeline_child.py FOLDER
"""

import contextlib
import gc
import pickle
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np

from kerasmem import backends
from kerasmem.callbacks import GradientMonitor, MemoryTimeline
from kerasmem.errors import KerasMemWarning

L = keras.layers
BATCH, STEPS = 32, 6


def mlp():
    return keras.Sequential(
        [keras.Input((20,)), L.Dense(50, activation="relu"),
         L.Dense(30, activation="relu"), L.Dense(3)]
    )  # fmt: skip


def resnet():
    inputs = keras.Input((16, 16, 8))
    x = L.BatchNormalization()(L.Conv2D(8, 3, padding="same")(inputs))
    y = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = L.MaxPooling2D()(L.Add()([x, y]))
    return keras.Model(inputs, L.Dense(3)(L.Dropout(0.5)(L.Flatten()(x))))


def sequence():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(100, 16)(inputs)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 8)(x, x))
    x = L.Dense(16, activation="gelu")(x)
    # The usual recurrent initializer takes JAX a second to compile.
    x = L.SimpleRNN(16, recurrent_initializer="glorot_uniform")(x)
    return keras.Model(inputs, L.Dense(3)(x))


def nested():
    inner = keras.Sequential(
        [keras.Input((20,)), L.Dense(24, activation="relu"), L.Dense(20)], name="inner"
    )
    shared = L.Dense(20, activation="tanh", name="shared")
    inputs = keras.Input((20,))
    x = shared(inner(shared(inner(inputs))))
    return keras.Model(inputs, L.Dense(3)(x))


def data(model):
    rng = np.random.default_rng(0)
    shape = (BATCH * STEPS, *model.input_shape[1:])
    if model.inputs[0].dtype == "int32":
        x = rng.integers(0, 100, shape).astype("int32")
    else:
        x = rng.normal(size=shape).astype("float32")
    return x, rng.integers(0, 3, BATCH * STEPS).astype("int32")


def tiny():
    return keras.Sequential([keras.Input((4,)), L.Dense(3)])


def train(build, *, callbacks, optimizer="adam", scope=None, jit_compile="auto"):
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    with scope or contextlib.nullcontext():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit_compile)
    x, y = data(model)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def bytes_by_layer(variables):
    sums = Counter()
    for variable in variables:
        sums[variable.path.rpartition("/")[0]] += int(np.prod(variable.shape)) * 4
    return dict(sums)


def watch(build, **how):
    monitor = MemoryTimeline()
    model = train(build, callbacks=[monitor], **how)
    trained = model.trainable_variables
    return {
        "timelines": monitor.timelines,
        "values": [weight.tobytes() for weight in model.get_weights()],
        # An embedding's gradient comes as the rows that were looked up.
        "trained": bytes_by_layer(v for v in trained if "embeddings" not in v.path),
        "weights": bytes_by_layer(v for v in model.weights if "seed" not in v.path),
        "hooks": sorted(set(vars(model.layers[-1])) & {"call"})
        + sorted(set(vars(model.optimizer)) & {"apply"}),
    }


def from_first_step():
    """Return the window of the step that builds model and slots, and its weights."""
    keras.utils.clear_session()
    model = keras.Sequential([L.Dense(50, name="first"), L.Dense(3, name="last")])
    model.compile("adam", "mse")
    monitor = MemoryTimeline(steps=range(1))
    x, y = np.ones((BATCH, 20), "float32"), np.ones((BATCH, 3), "float32")
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[monitor])
    trained = bytes_by_layer(model.trainable_variables)
    return {"timelines": monitor.timelines, "trained": trained}


class BreakOff(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            raise ValueError("broken off")


def break_off():
    with contextlib.suppress(ValueError):
        train(mlp, callbacks=[MemoryTimeline(), BreakOff()])
    gc.collect()


def broken_off():
    """Return the window of a `fit` that an exception ended inside of it."""
    monitor = MemoryTimeline()
    with contextlib.suppress(ValueError):
        train(mlp, callbacks=[monitor, BreakOff()])
    monitor.finish()
    monitor.finish()
    return monitor.timelines


def beside_gradients(**how):
    """Return the windows of a `fit` under both monitors, and the steps traced."""
    monitor = MemoryTimeline()
    with warnings.catch_warnings():
        warnings.simplefilter("error", KerasMemWarning)
        model = train(mlp, callbacks=[GradientMonitor(), Traces(), monitor], **how)
    return monitor.timelines, model.traces_seen


class Traces(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.traces_seen = backends.current().traces(self.model)


def told(**how):
    """Return the warnings of a small `fit`, and where its timelines come from."""
    monitor = MemoryTimeline()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(tiny, callbacks=[monitor], **how)
    texts = [str(w.message) for w in caught if w.category is KerasMemWarning]
    return texts, [timeline.source for timeline in monitor.timelines]


def while_busy(folder):
    import tensorflow as tf

    tf.profiler.experimental.start(folder)
    seen = told()
    tf.profiler.experimental.stop(save=False)
    return seen


def without_plan():
    reader = "kerasmem.backends.tensorflow.profile.step_plan"
    with mock.patch(reader, side_effect=ValueError("cut off")):
        return told(jit_compile=True)


def main(folder):
    break_off()
    seen: dict[str, Any] = {"mlp": watch(mlp), "sequence": watch(sequence)}
    seen["broken off"] = broken_off()
    seen["beside gradients"] = beside_gradients()
    bare = train(mlp, callbacks=[])
    seen["mlp, bare"] = [weight.tobytes() for weight in bare.get_weights()]
    seen["from the first step"] = from_first_step()
    seen["nested, sgd"] = watch(nested, optimizer="sgd")
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        both = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        seen["busy"] = while_busy(folder)
        seen["without plan"] = without_plan()
        seen["mlp, two replicas"] = watch(mlp, scope=both.scope())
        seen["beside gradients, jit"] = beside_gradients(jit_compile=True)
        seen["mlp, jit"] = watch(mlp, jit_compile=True)
        seen["resnet, jit"] = watch(resnet, jit_compile=True)
    keras.config.set_dtype_policy("mixed_float16")
    seen["resnet, mixed_float16"] = watch(resnet)
    Path(folder, "seen.pickle").write_bytes(pickle.dumps(seen))


if __name__ == "__main__":
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
    main(sys.argv[1])
