"""A chunked head beside a plain one: memory and time of a training step.

    KERAS_BACKEND=tensorflow TF_CPU_ALLOCATOR_USE_BFC=1 \\
        python -m tests.benchmarks.bench_vocabulary [--jit 1] [--rows 8192]
    KERAS_BACKEND=jax python -m tests.benchmarks.bench_vocabulary

States (8,192 rows of 576) are weights, so that they get gradients; 50,000 words,
float32, SGD. TensorFlow's peak is that of its allocator; JAX's, the temporary memory of
the compiled step; torch tells none. Weights, gradients and inputs are taken off. Steps
in turns: the median of five times, the highest of five peaks, which differ by the
order in which a graph's operations run.
"""

import argparse
import json
import statistics
import time

import keras
import numpy as np

from kerasmem.layers import ChunkedCrossentropy, ChunkedVocabulary

WIDTH = 576


class States(keras.layers.Layer):
    """Gives states, which are trained."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def build(self, _):
        """Make them."""
        self.states = self.add_weight(
            (self.rows, WIDTH), "random_normal", name="states"
        )

    def call(self, inputs):
        """Return them, one for each input."""
        return keras.ops.take(self.states, inputs, axis=0)


def network(chunked, rows, words, jit):
    """Return a compiled net."""
    keras.utils.set_random_seed(0)
    given = keras.Input((), dtype="int32")
    x = States(rows)(given)
    head = (
        ChunkedVocabulary(words)
        if chunked
        else keras.layers.Dense(words, use_bias=False)
    )
    model = keras.Model(given, head(x))
    loss = (
        ChunkedCrossentropy()
        if chunked
        else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit)
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jit", type=int, default=0)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--words", type=int, default=50_000)
    given = parser.parse_args()
    rows, words = given.rows, given.words
    jit = bool(given.jit) or keras.backend.backend() == "jax"
    x = np.arange(rows, dtype="int32")
    y = np.random.default_rng(0).integers(0, words, rows).astype("int32")
    models = {
        name: network(name == "chunked", rows, words, jit)
        for name in ("plain", "chunked")
    }
    seconds, losses = {}, {}
    peaks: dict[str, int] = {}
    for name, model in models.items():
        losses[name] = [float(model.train_on_batch(x, y, return_dict=True)["loss"])]
        seconds[name] = []
    for _ in range(5):
        for name, model in models.items():
            start, before = time.perf_counter(), reset()
            found = model.train_on_batch(x, y, return_dict=True)
            seconds[name].append(time.perf_counter() - start)
            losses[name].append(float(found["loss"]))
            peaks[name] = max(peak(before), peaks.get(name, 0))
    if keras.backend.backend() == "jax":
        peaks = {name: compiled_bytes(model, x, y) for name, model in models.items()}
    gradients = 4 * WIDTH * (words + rows)
    for name in models:
        line = {
            "head": name,
            "seconds": round(statistics.median(seconds[name]), 2),
            "loss": losses[name][-1],
            "mib_above": (peaks[name] - gradients) >> 20 if peaks[name] else None,
        }
        print(json.dumps(line))


def reset():
    """Return the bytes in use, and begin a peak anew, where that is known."""
    if keras.backend.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    tf.config.experimental.reset_memory_stats("CPU:0")
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


def peak(before):
    """Return the bytes above `before`, 0 where they are not known."""
    if keras.backend.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before


def compiled_bytes(model, x, y):
    """Return the temporary bytes of a step, as XLA's compiler tells them."""
    import jax

    kinds = ("trainable", "non_trainable", "optimizer", "metrics")
    state = model._get_jax_state(**{f"{kind}_variables": True for kind in kinds})
    step = jax.jit(model.train_step, donate_argnums=0).lower(state, (x, y))
    return step.compile().memory_analysis().temp_size_in_bytes


if __name__ == "__main__":
    main()
