"""What tfmot does wrong does not happen here: D1 to D9 of our notes on it.

D3, sparse at every batch and in checkpoints: `test_pruning_in_step`, `test_pruning`.
D4, fewer steps than a frequency: `test_pruning_in_step`, never-fire errors.
D5, ties and sparse models: `test_masks_of_scores`, `test_pruning_in_step`.
"""

import json

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.recipe import from_json
from kerasmem.graph.values import to_numpy
from tests.models import L

X = np.random.default_rng(0).normal(2.0, 1.0, (32, 6)).astype("float32")
Y = X[:, :3]
AT_ONCE = km.Prune(0.5, end=0.0)


class Inner(L.Layer):
    """A custom layer with a kernel of its own and one of a layer in it."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(8)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 8), name="kernel")
        self.table = self.add_weight(shape=(8,), name="offsets")
        self.dense.build((None, 8))

    def call(self, x):
        return self.dense(x @ self.kernel + self.table)


class Outer(keras.Model):
    """A subclassed model, which tfmot refuses."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.norm = L.BatchNormalization()
        self.drop = L.Dropout(0.9)
        self.head = L.Dense(3)

    def call(self, x, training=False):
        x = self.norm(self.inner(x), training=training)
        return self.head(self.drop(x, training=training))


def outer():
    model = Outer()
    model(X)
    model.compile("sgd", "mse")
    return model


def share(variable):
    return float((to_numpy(variable) == 0).mean())


def test_d1_dropout_and_batch_normalization_know_that_they_train():
    model = outer()
    moving_mean = to_numpy(model.norm.moving_mean).copy()
    seen = []
    original = model.drop.call

    def call(x, training=False):
        seen.append(training)
        return original(x, training=training)

    model.drop.call = call
    model.fit(X, Y, verbose=0, callbacks=[km.callbacks.Pruning(AT_ONCE)])
    assert seen[-1] is True
    assert np.abs(to_numpy(model.norm.moving_mean) - moving_mean).max() > 1e-3


def test_d2_the_pattern_is_in_the_plain_data():
    prune = km.Prune(0.5, pattern="2:4", ratios={"a": 0.5}, scope=["b"], include="c")
    text = json.dumps(prune.to_json())
    assert json.loads(text)["pattern"] == "2:4"
    assert from_json(json.loads(text)) == prune


def test_d6_the_original_model_is_left_alone():
    model = keras.Sequential([keras.Input((6,)), L.Dense(8), L.Dense(3)])
    model.compile("sgd", "mse")
    before = [to_numpy(v).copy() for v in model.variables]
    result = km.compress(model, km.Prune(0.5), data=(X, Y), fine_tune_epochs=1)
    assert share(result.model.layers[0].kernel) == 0.5
    for old, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, to_numpy(variable))


def test_d7_and_d8_layers_in_layers_are_found_and_what_is_left_alone_has_a_reason():
    model = outer()
    pruning = km.callbacks.Pruning(AT_ONCE)
    model.fit(X, Y, verbose=0, callbacks=[pruning])
    assert share(model.inner.kernel) == share(model.inner.dense.kernel) == 0.5
    reasons = {change.weight: change.detail for change in pruning.changes}
    assert reasons[model.head.kernel.path] == "is in the output layer"
    for variable in (model.inner.table, model.norm.gamma, model.norm.moving_mean):
        assert reasons[variable.path] == "is not a kernel or embedding table"
    assert len(reasons) == len(model.variables) - len(model.drop.variables)


def test_d9_weights_of_the_float_model_load_into_a_pruned_one(tmp_path):
    model = keras.Sequential([keras.Input((6,)), L.Dense(8), L.Dense(3)])
    model.compile("sgd", "mse")
    model.save_weights(tmp_path / "float.weights.h5")
    before = to_numpy(model.layers[0].kernel).copy()
    model.fit(X, Y, verbose=0, callbacks=[km.callbacks.Pruning(AT_ONCE)])
    model.load_weights(tmp_path / "float.weights.h5")
    np.testing.assert_array_equal(to_numpy(model.layers[0].kernel), before)
