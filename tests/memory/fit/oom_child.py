"""Real out-of-memory errors of TensorFlow's allocator, in a process of their own.

    python -m tests.memory.fit.oom_child

with the CPU's allocator limited to 64 MiB. It prints JSON: for each place where a step
can fail, what was torn and how the training ended. Each failure takes the ten seconds
that the allocator waits, so there is one in each place.
"""

import json
import sys
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from kerasmem.memory.fit import fit
from kerasmem.memory.fit.plan import Rollback

WHERE = ("forward", "backward", "update")
BATCH = 64
ROW_ENTRIES = 220_000  # 1 MiB a sample: 64 samples are above the limit, 32 are not


def hungry(value, rows, entries):
    """Return `value`; on the way `rows` times `entries` numbers are held."""
    held = tf.fill([rows, entries], tf.reduce_sum(value))
    return value + 0.0 * tf.cast(tf.reduce_any(tf.math.is_nan(held)), value.dtype)


class Hungry(keras.layers.Layer):
    def __init__(self, where, appetite, rows):
        super().__init__()
        self.where, self.appetite, self.rows = where, appetite, rows

    def call(self, inputs, training=None):
        if not training:
            return inputs
        rows = tf.shape(inputs)[0]
        self.rows.assign(rows)
        if self.where == "forward":
            return hungry(inputs, rows, self.appetite)

        @tf.custom_gradient
        def same(value):
            def gradient(upstream):
                if self.where != "backward":
                    return upstream
                return hungry(upstream, rows, self.appetite)

            return tf.identity(value), gradient

        return same(inputs)


class HungryAdam(keras.optimizers.Adam):
    def __init__(self, where, appetite, rows):
        super().__init__(0.01)
        self.hungers = where == "update"
        self.appetite, self.rows = appetite, rows

    def update_step(self, gradient, variable, learning_rate):
        if self.hungers and tuple(variable.shape) == (32, 1):
            gradient = hungry(gradient, self.rows, self.appetite)
        super().update_step(gradient, variable, learning_rate)


def network(where, appetite):
    rows = tf.Variable(0, trainable=False)
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(32, "tanh"),
            layers.Dense(32, "tanh"),
            Hungry(where, appetite, rows),
            layers.Dense(32, "tanh"),
            layers.Dense(1),
        ]
    )
    model.compile(HungryAdam(where, appetite, rows), "mse", jit_compile=False)
    return model


def state_of(model):
    return [v.numpy().copy() for v in [*model.variables, *model.optimizer.variables]]


def changed_since(copy):
    """Return how many variables a failed step has left with other values."""
    pairs = zip(copy.variables, copy.values, strict=True)
    return sum(not np.array_equal(v.numpy(), value) for v, value in pairs)


def survived(where):
    """Train with a first step that fails, and without; return what differs."""
    x = np.random.default_rng(0).normal(size=(10 * BATCH, 8)).astype("float32")
    y = x.sum(1, keepdims=True)
    arguments = {"x": x, "y": y, "batch_size": BATCH, "shuffle": False, "verbose": 0}
    untouched = network(where, 1)
    wanted = untouched.fit(**arguments, epochs=2).history["loss"]

    survivor, torn, back = network(where, ROW_ENTRIES), [], Rollback.back

    def counted(rollback, state):
        torn.append(changed_since(rollback._copy))
        return back(rollback, state)

    with (
        mock.patch.object(Rollback, "back", counted),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        history = fit(survivor, **arguments, epochs=2).history["loss"]
    pairs = list(zip(state_of(survivor), state_of(untouched), strict=True))
    return {
        "torn": torn,
        "warnings": [str(each.message) for each in told],
        "weights_differ": max(float(np.abs(a - b).max()) for a, b in pairs),
        "losses_differ": float(np.abs(np.subtract(history, wanted)).max()),
        "iterations": int(survivor.optimizer.iterations.numpy()),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps({where: survived(where) for where in WHERE}))
