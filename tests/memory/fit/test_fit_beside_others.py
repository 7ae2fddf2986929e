"""A fit in parts together with what else there is: monitors, devices, validation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from kerasmem.callbacks import GradientMonitor
from kerasmem.errors import KerasMemWarning
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.fit import fit, plan
from tests.memory.fit.failing import Shortage, failing_model
from tests.memory.fit.test_micro_batches import BATCH, data, dense, in_parts, weights
from tests.two_devices import TWO_DEVICES


def test_the_gradient_that_is_watched_is_that_of_the_whole_batch(monkeypatch):
    arguments = data() | {"batch_size": BATCH, "epochs": 3, "shuffle": False}
    plain, ours = GradientMonitor(every=2), GradientMonitor(every=2)
    dense().fit(**arguments, verbose=0, callbacks=[plain])
    limit = in_parts(monkeypatch, 4)
    with pytest.warns(KerasMemWarning, match="in 4 micro-batches"):
        fit(dense(), **arguments, **limit, verbose=0, callbacks=[ours])
    for found, wanted in zip(ours.records, plain.records, strict=True):
        assert found.steps == wanted.steps
        assert found.norm == pytest.approx(wanted.norm, rel=1e-4)
        for one, other in zip(found.variables, wanted.variables, strict=True):
            assert one.norm_last == pytest.approx(other.norm_last, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("where", ["forward", "update"])
def test_what_a_monitor_counted_in_a_failed_step_does_not_count(where):
    x = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
    arguments = {"x": x, "y": x[:, :1], "batch_size": 32, "epochs": 2, "verbose": 0}
    arguments["shuffle"] = False
    plain, ours = GradientMonitor(every=2), GradientMonitor(every=2)
    failing_model(Shortage(), where).fit(**arguments, callbacks=[plain])
    model = failing_model(Shortage(at=[6 if where == "update" else 1]), where)
    with pytest.warns(KerasMemWarning, match="repeated in 2 parts"):
        fit(model, **arguments, callbacks=[ours])
    for found, wanted in zip(ours.records, plain.records, strict=True):
        assert found.steps == wanted.steps == 3
        assert found.norm == pytest.approx(wanted.norm, rel=1e-4)
        for one, other in zip(found.variables, wanted.variables, strict=True):
            assert one.steps == other.steps
            assert one.norm_last == pytest.approx(other.norm_last, rel=1e-3)
            assert one.update_ratio == pytest.approx(other.update_ratio, rel=1e-3)


def test_batch_statistics_are_warned_of(monkeypatch):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(4),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )
    model.compile("sgd", "mse")
    with (
        pytest.warns(KerasMemWarning, match="in 2 micro-batches"),
        pytest.warns(
            KerasMemWarning, match="BatchNormalization computes its statistics per"
        ),
    ):
        fit(model, **data(), batch_size=BATCH, verbose=0, **in_parts(monkeypatch, 2))


def test_nothing_is_left_on_the_model(monkeypatch):
    model = dense()
    model.fit(**data(), verbose=0, shuffle=False)
    before = [set(vars(each)) for each in (model, model.optimizer)]
    variables = [v.path for v in model.optimizer.variables]
    function = model.train_function
    with pytest.warns(KerasMemWarning, match="in 2 micro-batches"):
        fit(model, **data(), verbose=0, **in_parts(monkeypatch, 2))
    assert [set(vars(each)) for each in (model, model.optimizer)] == before
    assert [v.path for v in model.optimizer.variables] == variables
    assert model.train_function is function


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras on torch has one device"
)
def test_two_devices_split_alike(backend):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.memory.fit.two_devices"],
        env=os.environ | TWO_DEVICES,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["data"] <= 1e-5
    if backend == "jax":
        assert found["model"] <= 1e-5
        # A sum lies on the devices as its variable does, not on all of them.
        assert all(ours == theirs for ours, theirs in found["specs"])
        assert any("model" in ours for ours, _ in found["specs"])


def test_a_list_of_callbacks_that_keras_made_is_used_and_given_back():
    model = dense()
    callbacks = keras.callbacks.CallbackList([], add_history=True, model=model)
    before = list(callbacks.callbacks)
    fit(model, **data(), epochs=2, verbose=0, callbacks=callbacks)
    assert callbacks.callbacks == before
    assert len(model.history.history["loss"]) == 2


def test_inputs_of_different_lengths_train_as_in_fit():
    class Table(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = layers.Dense(3)

        def call(self, inputs):
            return self.head(inputs["x"]) * inputs["scale"]

    def batches():
        x, y = data().values()
        while True:
            yield {"x": x[:8], "scale": np.ones(3, "float32")}, y[:8]

    trained = []
    for train in (keras.Model.fit, fit):
        keras.utils.set_random_seed(3)
        model = Table()
        model.compile("sgd", "mse")
        train(model, batches(), steps_per_epoch=3, shuffle=False, verbose=0)
        trained.append(weights(model))
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="Keras on JAX cannot unfreeze in a fit"
)
def test_layers_that_a_callback_unfreezes_are_trained_in_parts_too(monkeypatch):
    class Unfreeze(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.layers[0].trainable = True
                self.model.make_train_function(force=True)

    def frozen():
        model = dense()
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.optimizer.build(model.layers[0].trainable_variables or model.variables)
        return model

    arguments = data() | {"batch_size": BATCH, "epochs": 2, "shuffle": False}
    expected, found = frozen(), frozen()
    expected.fit(**arguments, verbose=0, callbacks=[Unfreeze()])
    limit = in_parts(monkeypatch, 2)
    with pytest.warns(KerasMemWarning, match="in 2 micro-batches"):
        fit(found, **arguments, **limit, verbose=0, callbacks=[Unfreeze()])
    for ours, theirs in zip(weights(found), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_batch_that_is_estimated_not_to_fit_is_split_at_once(monkeypatch):
    # Other tests' models may be in use in this process.
    monkeypatch.setattr(plan, "_other_bytes", lambda model: 0)

    def wide():
        keras.utils.set_random_seed(3)
        hidden = [layers.Dense(64, "tanh") for _ in range(6)]
        model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(3)])
        model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
        return model

    x, y = np.repeat(data()["x"], 32, 0), np.repeat(data()["y"], 32, 0)
    arguments = {"batch_size": 3072, "epochs": 2, "shuffle": False, "verbose": 0}
    expected, found = wide(), wide()
    expected.fit(x, y, **arguments)
    limit = estimate_memory(found, 3072, device="cpu").peak_bytes * 3 // 4
    with pytest.warns(KerasMemWarning, match=r"trained in \d micro-batches") as told:
        fit(found, x, y, memory_limit=limit, **arguments)
    assert [w.category for w in told].count(KerasMemWarning) == 1
    for ours, theirs in zip(weights(found), weights(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
