"""What kerasmem does with optimizers, it does with its own."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.callbacks import GradientMonitor, Pruning
from kerasmem.files.contents import optimizer_state
from kerasmem.memory.estimate.variables import optimizer_slots
from kerasmem.memory.timeline.watched import watched
from kerasmem.optimizers import Adafactor, Adam8bit

RATE = 0.01
MAKERS = {"Adam8bit": lambda: Adam8bit(RATE), "Adafactor": lambda: Adafactor(0.1)}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def model_with(optimizer):
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((40,)),
            keras.layers.Dense(128, activation="relu", name="wide"),
            keras.layers.Dense(3, name="head"),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def fit(model, **options):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 40)).astype("float32")
    y = rng.normal(size=(32, 3)).astype("float32")
    options = {"batch_size": 8, "verbose": 0, "shuffle": False} | options
    return model.fit(x, y, **options).history


def nbytes(optimizer):
    return sum(keras.ops.convert_to_numpy(v).nbytes for v in optimizer.variables)


@each
def test_the_estimate_has_its_slots_to_the_byte_and_by_layer(make):
    model = model_with(make())
    estimate = km.estimate_memory(model, 8, method="analytic")
    slots = optimizer_slots(model.optimizer, model.trainable_variables)
    model.optimizer.build(model.trainable_variables)

    state = nbytes(model.optimizer)
    assert estimate.by_category()["optimizer_state"] == state
    assert sum(slot.nbytes for slot in slots) == state
    by_variable = {
        v.path: sum(slot.nbytes for slot in slots if slot.variable == v.path)
        for v in model.trainable_variables
    }
    assert all(by_variable.values())
    assert state - sum(by_variable.values()) <= 12  # the step and the rate


def test_a_slot_is_named_by_what_it_keeps():
    model = model_with(Adam8bit())
    slots = optimizer_slots(model.optimizer, model.trainable_variables)
    kernel = model.layers[0].kernel.path
    assert {slot.name: slot.nbytes for slot in slots if slot.variable == kernel} == {
        "momentum_codes": 40 * 128,
        "momentum_scales": 20 * 4,
        "velocity_codes": 40 * 128,
        "velocity_scales": 20 * 4,
    }


@each
def test_a_timeline_knows_the_layer_of_every_slot(make):
    model = model_with(make())
    model.optimizer.build(model.trainable_variables)
    layers = [
        known.layer
        for known in watched(model)[0].variables
        if known.category == "optimizer_state" and known.shape != "[]"
    ]
    assert set(layers) == {layer.path for layer in model.layers}


def test_a_gradient_monitor_changes_nothing_and_sees_the_gradient():
    watched, alone = model_with(Adam8bit(RATE)), model_with(Adam8bit(RATE))
    by_sgd = model_with(keras.optimizers.SGD(0.0))
    monitor, reference = GradientMonitor(every=2), GradientMonitor(every=2)

    fit(watched, callbacks=[monitor], batch_size=32, epochs=3)
    fit(alone, batch_size=32, epochs=3)
    fit(by_sgd, callbacks=[reference], batch_size=32)

    for one, other in zip(watched.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    expected = reference.records[0].norm
    assert monitor.records[0].norm == pytest.approx(expected, rel=1e-5)
    assert monitor.records[2].norm < expected


def test_pruned_weights_stay_zero_in_training():
    model = model_with(Adam8bit(RATE))
    fit(model, callbacks=[Pruning(km.Prune(0.5, end=0.2))], epochs=2)
    kernel = model.layers[0].get_weights()[0]
    assert (kernel == 0).mean() == pytest.approx(0.5, abs=0.001)


@each
def test_a_file_tells_the_bytes_of_its_optimizer(make, tmp_path):
    model = model_with(make())
    fit(model)
    km.save_model(model, tmp_path / "model.keras", include_optimizer=True)

    loaded = km.load_model(tmp_path / "model.keras")

    assert optimizer_state(tmp_path / "model.keras").bytes == nbytes(model.optimizer)
    fit(model)
    fit(loaded)
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_in_a_graph_codes_become_floats_one_variable_after_the_other(backend):
    if backend != "tensorflow":  # no other runs whatever has its inputs
        return
    import tensorflow as tf

    kernels = [keras.Variable(np.zeros((64, 64), "float32")) for _ in range(2)]
    optimizer = Adam8bit()
    optimizer.build(kernels)

    @tf.function
    def update(first, second):
        optimizer.apply([first, second], kernels)

    gradient = tf.TensorSpec((64, 64))
    graph = update.get_concrete_function(gradient, gradient).graph

    def needs(operation):
        seen, ahead = set(), [operation]
        while ahead:
            operation = ahead.pop()
            if operation not in seen:
                seen.add(operation)
                ahead += [x.op for x in operation.inputs] + operation.control_inputs
        return {operation.name for operation in seen}

    decoded = [
        operation
        for operation in graph.get_operations()
        if operation.type == "Cast" and operation.inputs[0].dtype == tf.uint8
    ]
    assert len(decoded) == 4
    # Backward, the gradient of the second is there first; then comes its update.
    assert all("second" in needs(operation) for operation in decoded)
    done = {operation.name for operation in decoded[:2]}
    assert all(done <= needs(operation) for operation in decoded[2:])
    assert not done & needs(decoded[0]) - {decoded[0].name}
