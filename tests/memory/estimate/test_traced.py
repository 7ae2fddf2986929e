"""A traced step against peaks of an H200, without one."""

import keras
import pytest
from keras import layers

from kerasmem import errors
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.estimate.request import Input, Request
from kerasmem.memory.estimate.traced import estimate_in_process
from kerasmem.units import MIB

MEASURED = {  # batch 64, Adam, float32: MiB, and how near the estimate has to come
    "tensorflow": (657.1, 0.12),
    "torch": (860.7, 0.05),
    "jax": (2354.7, 0.25),  # compiled, and the largest in its life: JAX tells no other
}


@pytest.fixture(scope="module")
def cnn():
    inputs = x = layers.Input((64, 64, 3))
    for filters in (64, 64, 128, 128, 256):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        if filters != 64:
            x = layers.MaxPooling2D()(x)
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.optimizer.build(model.trainable_variables)
    return model


def question(model, batch_size, **changes):
    backend = keras.backend.backend()
    settings = {
        "model": model,
        "inputs": (Input("x", (batch_size, *model.inputs[0].shape[1:]), "float32"),),
        "batch_size": batch_size,
        "optimizer": model.optimizer,
        "dtype_policy": None,
        "jit_compile": backend == "jax",
        "backend": backend,
        "training": True,
        "device": "gpu",
    }
    return Request(**settings | changes)


@pytest.fixture(scope="module")
def found(cnn):
    return estimate_in_process(question(cnn, 64))


def test_the_peak_is_near_the_measured_one(found, backend):
    measured, tolerance = MEASURED[backend]
    assert found.peak_bytes == pytest.approx(measured * MIB, rel=tolerance)
    assert found.low_bytes < measured * MIB < found.high_bytes


def test_what_is_in_use_at_the_peak_adds_up_to_it(found):
    used = sum(part.nbytes for part in found.parts)
    assert used == found.peak_bytes


def test_weights_and_slots_are_exact(found, cnn):
    sizes = found.by_category()
    weights = 4 * cnn.count_params()
    assert sizes["parameter"] == weights
    assert 0 <= sizes["optimizer_state"] - 2 * weights <= 16  # rate and step count


def test_activations_belong_to_the_layers_that_made_them(found, cnn):
    places = {part.layer for part in found.parts if part.category == "activation"}
    assert places & {layer.path for layer in cnn.layers}


def test_predict_needs_less_than_training(cnn, found):
    predict = estimate_in_process(question(cnn, 64, training=False, optimizer=None))
    assert predict.peak_bytes < found.peak_bytes
    assert "gradient" not in predict.by_category()


@pytest.mark.parametrize("method", ["analytic", "traced"])
def test_predict_needs_no_optimizer_whether_the_model_has_one_or_not(method):
    options = {"training": False, "device": "cpu", "method": method}
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    before = estimate_memory(model, 8, **options)
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    assert estimate_memory(model, 8, **options) == before
    assert before.by_category()["parameter"] == 4 * (12 * 4 + 4)
    assert "optimizer_state" not in before.by_category()


def test_another_backend_is_traced_in_a_process_of_its_own(cnn, backend):
    # TensorFlow, because it is always there; in its own suite it is no other. Torch,
    # because an optimizer is of another class there.
    options = {"backend": "tensorflow", "jit_compile": False, "method": "traced"}
    found = estimate_memory(cnn, 64, **options)
    measured, tolerance = MEASURED["tensorflow"]
    assert found.peak_bytes == pytest.approx(measured * MIB, rel=tolerance)
    assert (found.backend, found.method) == ("tensorflow", "traced")


@pytest.mark.one_backend
@pytest.mark.parametrize("training", [False, True])
def test_windows_of_two_lengths_are_estimated(training):
    inputs = layers.Input((37, 41, 4))
    pooled = layers.AdaptiveAveragePooling2D((20, 5))(layers.Conv2D(16, 1)(inputs))
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(pooled)))
    options = {"backend": "tensorflow", "jit_compile": False, "training": training}
    analytic, traced = (
        estimate_memory(model, 64, optimizer="sgd", method=method, **options)
        for method in ("analytic", "traced")
    )
    assert analytic.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.1)


def test_a_part_of_the_running_script_is_traced_in_another_process(backend):
    class Mine(keras.layers.Layer):
        def call(self, x):
            return 2.0 * x

    Mine.__module__ = "__main__"
    model = keras.Sequential([keras.Input((4,)), Mine(), layers.Dense(1)])
    estimate = estimate_memory(model, 8, optimizer="sgd", method="traced")
    assert 0 < estimate.low_bytes <= estimate.peak_bytes


def test_a_step_that_runs_is_measured(backend):
    x = inputs = keras.Input((256,))
    for _ in range(3):
        x = layers.Dense(256, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    with pytest.raises(errors.ConfigError, match="JAX does not report how much memory"):
        estimate_memory(model, 8, backend="jax", method="measured")
    if backend == "jax":
        return
    small, large = (
        estimate_memory(model, size, method="measured") for size in (16, 512)
    )
    # Each weight, its momentum and its gradient; below, activations of 512 samples.
    weights = 4 * model.count_params()
    # Threads may update all weights at once. Each then also needs the momentum times a
    # factor, the gradient times the rate, and the sum of both.
    assert 3 * weights <= small.peak_bytes <= (3 + 3) * weights
    more = large.peak_bytes - small.peak_bytes
    activations = 4 * 496 * 256 * 4
    assert 0.8 * activations <= more <= 2.5 * activations
    assert large.low_bytes < large.peak_bytes < large.high_bytes
    assert (large.method, large.backend, large.device) == ("measured", backend, "cpu")


def test_a_loop_is_refused_where_nobody_can_size_it(backend):
    model = keras.Sequential([keras.Input((6, 4)), layers.SimpleRNN(3)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    inputs = (Input("x", (8, 6, 4), "float32"),)
    asked = question(model, 8, inputs=inputs)
    if backend == "tensorflow":
        with pytest.raises(errors.ModelError, match=r"contains a loop.*measured"):
            estimate_in_process(asked)
    else:
        assert estimate_in_process(asked).peak_bytes > 4 * model.count_params()
