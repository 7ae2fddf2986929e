"""Estimates for a CPU against what TensorFlow's allocator says of real steps on it."""

import gc
import os
import statistics
import warnings

import keras
import pytest
from keras import layers

import kerasmem as km
from kerasmem.memory.batch_size.trial import ONE_THREAD
from kerasmem.memory.estimate import Input, Request
from kerasmem.memory.estimate.inputs import run_once, zeros
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR, estimate_in_process
from kerasmem.processes import ON_THE_CPU, run_in_child

pytestmark = pytest.mark.one_backend

BATCH = 32  # more than runs: a step of so many is extended from two small ones
STEPS = 3


def dense():
    inputs = x = layers.Input((256,))
    for _ in range(2):
        x = layers.Dense(512, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def convolutions():
    inputs = x = layers.Input((32, 32, 3))
    for filters in (16, 32):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def attention():
    inputs = x = layers.Input((64, 64))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 32)(x, x))
    x = x + layers.Dense(64)(layers.Dense(256, activation="gelu")(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def frozen():
    base = convolutions()
    base = keras.Model(base.input, base.layers[-3].output)
    base.trainable = False
    inputs = layers.Input((32, 32, 3))
    x = layers.GlobalAveragePooling2D()(base(inputs, training=False))
    return keras.Model(inputs, layers.Dense(10)(x))


def words():
    """A network with more outputs than activations."""
    inputs = layers.Input((64, 64))
    return keras.Model(inputs, layers.Dense(1000)(inputs))


NETWORKS = {  # smallest first: what a pool was made for, it wastes on less
    "dense": dense,
    "frozen": frozen,
    "attention": attention,
    "convolutions": convolutions,
}
STEPPED = ("dense", "convolutions")


def compiled(name):
    model = NETWORKS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model


def measure(job):
    """Return bytes per network, real and estimated from small steps; in a child."""
    return {name: _measured(name) for name in job["names"]}


def _measured(name):
    import tensorflow as tf

    memory = tf.config.experimental
    before = memory.get_memory_info("CPU:0")["current"]
    model = compiled(name)
    model.optimizer.build(model.trainable_variables)
    asked = Request(
        model=model,
        inputs=(Input("x", (BATCH, *model.inputs[0].shape[1:]), "float32"),),
        batch_size=BATCH,
        optimizer=model.optimizer,
        dtype_policy=None,
        jit_compile=False,
        backend="tensorflow",
        training=True,
        device="cpu",
    )
    found = {}
    if name in STEPPED:
        found["step"] = estimate_in_process(asked).peak_bytes - before
    batch = zeros(asked)
    run_once(asked, batch)
    memory.reset_memory_stats("CPU:0")
    for _ in range(STEPS):
        run_once(asked, batch)
    found["real"] = memory.get_memory_info("CPU:0")["peak"] - before
    del model, asked
    keras.backend.clear_session()
    gc.collect()
    return found


def analytic(name):
    return km.estimate_memory(
        compiled(name),
        BATCH,
        backend="tensorflow",
        device="cpu",
        method="analytic",
        jit_compile=False,
    )


@pytest.fixture(scope="module")
def measured():
    return run_in_child(
        f"{__name__}:measure",
        {"names": list(NETWORKS)},
        backend="tensorflow",
        # With more threads no two steps need the same.
        environment={**ON_THE_CPU, **COUNTING_ALLOCATOR, **ONE_THREAD},
    )


def errors(found, measured):
    return [abs(found[name] / measured[name]["real"] - 1) for name in found]


def test_steps_of_small_batches_tell_a_larger_one(measured):
    found = {name: measured[name]["step"] for name in STEPPED}
    assert max(errors(found, measured)) <= 0.2


def test_the_analytic_estimate_is_near_the_allocators_figure(measured, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    found = {name: analytic(name).peak_bytes for name in NETWORKS}
    # The real figure itself moves by a tenth; the benchmark has twelve models.
    assert statistics.median(errors(found, measured)) <= 0.15
    assert max(errors(found, measured)) <= 0.3


def test_a_metric_that_takes_the_argmax_needs_copies_of_the_outputs():
    peaks = {}
    for metric in (None, "binary_accuracy", "accuracy", "sparse_categorical_accuracy"):
        model = words()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = metric and [metric]
        model.compile("adam", loss, weighted_metrics=metrics, jit_compile=False)
        methods = (
            ["analytic"] if metric == "binary_accuracy" else ["analytic", "traced"]
        )
        for method in methods:
            estimate = km.estimate_memory(model, BATCH, device="cpu", method=method)
            peaks[metric, method] = estimate.peak_bytes
    outputs = BATCH * 64 * 1000 * 4
    assert peaks["binary_accuracy", "analytic"] == peaks[None, "analytic"]
    for metric in ("accuracy", "sparse_categorical_accuracy"):
        # The outputs themselves, sign bits in 32 bits and a mask in 8, and 8 % of
        # unsplit chunks.
        more = peaks[metric, "analytic"] - peaks[None, "analytic"]
        assert more == pytest.approx(2.25 * 1.08 * outputs, rel=0.03)
        for tried in (None, metric):
            near = pytest.approx(peaks[tried, "traced"], rel=0.1)
            assert peaks[tried, "analytic"] == near


def test_the_search_for_such_metrics_calls_nothing_of_the_user():
    class Loss(keras.losses.Loss):
        def get_config(self):
            raise NotImplementedError

    model = words()
    model.compile(
        "adam",
        Loss(),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
        weighted_metrics=[lambda y, z: keras.ops.mean(y - z)],
        jit_compile=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = km.estimate_memory(model, BATCH, device="cpu", method="analytic")
    model.compile("adam", "mse", jit_compile=False)
    plain = km.estimate_memory(model, BATCH, device="cpu", method="analytic")
    assert found.peak_bytes == plain.peak_bytes
