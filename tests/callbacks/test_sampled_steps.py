"""Steps that measure and those between."""

import keras
import numpy as np
import pytest

from kerasmem.callbacks import GradientMonitor
from kerasmem.graph.values import to_numpy

RATE, BATCH, EVERY, STEPS = 0.1, 4, 5, 13


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    return [rng.normal(size=(BATCH * STEPS, n)).astype("float32") for n in (6, 3)]


@pytest.fixture
def torn_data(data):
    """Data whose last batch has a shape of its own, so that steps are traced again."""
    return [values[:-1] for values in data]


def fit(model, data, *callbacks, every=EVERY, epochs=1, optimizer=None):
    compiled = keras.backend.backend() != "torch"
    model.compile(optimizer or keras.optimizers.SGD(RATE), "mse", jit_compile=compiled)
    monitor = GradientMonitor(every=every)
    options = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(*data, callbacks=[*callbacks, monitor], **options)
    return monitor


def test_all_figures_are_those_of_a_computation_by_hand(
    make_model, torn_data, reference_gradients
):
    model, norms, ratios = make_model(), [], []
    for start in range(0, BATCH * STEPS, BATCH):
        batch = [values[start : start + BATCH] for values in torn_data]
        weights = [to_numpy(v) for v in model.trainable_variables]
        gradients = reference_gradients(model, *batch)
        norms.append([np.linalg.norm(gradient) for gradient in gradients])
        sizes = [np.linalg.norm(weight) for weight in weights]
        ratios.append(RATE * norms[-1][0] / sizes[0])
        for v, w, g in zip(model.trainable_variables, weights, gradients, strict=True):
            v.assign(w - RATE * g)

    (record,) = fit(make_model(), torn_data).records

    total = np.linalg.norm(norms, axis=1)
    assert record.steps == STEPS
    assert record.norm == pytest.approx(total.mean(), rel=1e-4)
    assert record.norm_max == pytest.approx(total.max(), rel=1e-4)
    assert record.sampled_steps == (0, 5, 10)
    for index, row in enumerate(record.variables):
        sampled = [norms[step][index] for step in record.sampled_steps]
        assert row.norm == pytest.approx(np.mean(sampled), rel=1e-4)
    followed = [ratios[step] for step in (0, 1, 6, 11)]
    assert record.variables[0].update_ratio == pytest.approx(np.mean(followed), 1e-4)


def test_training_is_that_without_a_monitor(make_model, data):
    bare, watched = make_model(), make_model()
    fit(watched, data, optimizer=keras.optimizers.SGD(RATE), epochs=2)
    compiled = keras.backend.backend() != "torch"
    bare.compile(keras.optimizers.SGD(RATE), "mse", jit_compile=compiled)
    bare.fit(*data, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    for kept, found in zip(bare.weights, watched.weights, strict=True):
        np.testing.assert_allclose(to_numpy(found), to_numpy(kept), rtol=1e-6)


def test_a_step_of_ones_own_may_have_any_number_of_updates(make_model, own_step, data):
    monitor = fit(own_step(make_model()), data)
    assert [row.steps for row in monitor.records[0].variables] == [3] * 4


@pytest.mark.parametrize("option", ["gradient_accumulation_steps", "loss_scale"])
def test_updates_that_are_not_one_a_step_are_counted_in_the_step(
    make_model, data, option
):
    if option == "loss_scale":
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE))
    else:
        optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
    monitor = fit(make_model(), data, optimizer=optimizer)
    updates = STEPS if option == "loss_scale" else STEPS // 2
    assert monitor.records[0].sampled_steps == tuple(range(0, updates, EVERY))


def test_a_callback_that_makes_the_step_anew_loses_no_figure(make_model, data):
    class Anew(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 4:
                self.model.make_train_function(force=True)

    (record,) = fit(make_model(), data, Anew()).records
    assert record.steps == STEPS
    assert {row.steps for row in record.variables} == {3}


def test_several_monitors_measure_each_at_their_steps(make_model, data):
    others = [GradientMonitor(every=every) for every in (4, 6)]
    records = fit(make_model(), data, *others, epochs=3).records
    for record in [*records, *(r for other in others for r in other.records)]:
        sampled = len(record.sampled_steps)
        assert {row.steps for row in record.variables} == {sampled}


def test_what_a_callback_changes_between_epochs_is_no_update(make_model, data):
    class Enlarge(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            kernel = self.model.layers[0].kernel
            kernel.assign(3.0 * kernel)

    for every in (1, 6):  # the thirteenth step is sampled, and the last
        small = keras.optimizers.SGD(1e-5)
        monitor = fit(
            make_model(), data, Enlarge(), every=every, epochs=2, optimizer=small
        )
        for record in monitor.records:
            assert 0 < record.variables[0].update_ratio < 1e-3
