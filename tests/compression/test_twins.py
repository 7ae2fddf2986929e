"""Layers of one name in two functional models, for which Keras has one path."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.evidence import sums_over_samples
from kerasmem.compression.prune.masks import Masks
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ModelError
from kerasmem.graph.values import to_numpy
from tests.models import L, chain

X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")


def twins(*before):
    """Return a chain of two models that are alike but for their weights.

    Args:
        before: what each layer of the models is made by, a Dense by default.
    """

    def inner(name):
        makers = before or (lambda: L.Dense(6, use_bias=False, name="dense"),)
        inputs = x = keras.Input((6,))
        for make in makers:
            x = make()(x)
        return keras.Model(inputs, x, name=name)

    top = L.Dense(6, name="top")
    return chain((6,), inner("left"), L.ReLU(), inner("right"), L.ReLU(), top)


def kernels(model):
    return [weight for weight in model.weights if weight.path == "dense/kernel"]


def trained():
    model = twins()
    model.compile(keras.optimizers.Adam(0.01, use_ema=True), "mse")
    model.fit(X, X[::-1], batch_size=16, verbose=0)
    return model


def slots(model, name):
    """Return the values of the slots of kernels, in the order of the kernels."""
    return [
        to_numpy(slot)
        for slot in model.optimizer.variables
        if slot.name.endswith(f"kernel_{name}")
    ]


def test_each_has_its_own_gradients():
    model = twins()
    model.compile("sgd", "mse")
    found = sums_over_samples(model, kernels(model), "gradient", (X, X[::-1]))
    left, right = map(to_numpy, kernels(model))
    top = to_numpy(model.layers[-1].kernel)
    first = X @ left
    second = np.maximum(first, 0) @ right
    error = np.maximum(second, 0) @ top - X[::-1]
    back = (2 * error / error.size) @ top.T * (second > 0)
    expected = [
        X.T @ (back @ right.T * (first > 0)),
        np.maximum(first, 0).T @ back,
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_each_moving_average_has_its_own_mask():
    model = trained()
    kept = np.arange(36).reshape(6, 6) % 3 > 0
    masks = Masks(model, kernels(model))
    masks.write([kept, ~kept])
    masks.release()
    left, right, _ = slots(model, "average")
    np.testing.assert_array_equal(left == 0, ~kept)
    np.testing.assert_array_equal(right == 0, kept)


def test_a_bias_that_folding_makes_is_told_with_its_model():
    dense = lambda: L.Dense(6, use_bias=False, name="dense")  # noqa: E731
    _, changes = apply_technique(km.FoldBatchNorm(), twins(dense, L.BatchNormalization))
    made = [change.weight for change in changes if change.detail == "created"]
    assert made == ["left/dense/bias", "right/dense/bias"]


def test_equalizing_names_the_one_that_it_cannot():
    model = twins()
    kernels(model)[1].assign(np.full((6, 6), np.inf))
    with pytest.raises(ModelError, match="'right/dense/kernel'"):
        apply_technique(km.Equalize(), model)


@keras.saving.register_keras_serializable("tests")
class Fading(L.Dense):
    def call(self, x):
        self.kernel.assign(0.9 * self.kernel)
        return super().call(x)


def test_training_names_the_one_that_assigns_its_weight():
    model = twins(lambda: Fading(6, name="dense"))
    aware = km.quantization_aware(model, km.Quantize("int8", exclude="left/"))
    with pytest.raises(ModelError, match=r"exclude='right/dense/kernel'"):
        aware(X, training=True)
