"""A network small enough to recompute, and gradients from the frameworks themselves."""

import keras
import numpy as np
import pytest


def _tensorflow_gradients(model, loss, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss(model(x, training=True))
    gradients = tape.gradient(value, [v.value for v in model.trainable_variables])
    return [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


def _jax_gradients(model, loss, x):
    import jax

    def value(trainable):
        fixed = [v.value for v in model.non_trainable_variables]
        return loss(model.stateless_call(trainable, fixed, x, training=True)[0])

    return jax.grad(value)([v.value for v in model.trainable_variables])


def _torch_gradients(model, loss, x):
    import torch

    parameters = [v.value for v in model.trainable_variables]
    return torch.autograd.grad(loss(model(x, training=True)), parameters)


@pytest.fixture
def reference_gradients(backend):
    """Return a function of model, x, y: the gradients of the mean squared error."""
    compute = {
        "tensorflow": _tensorflow_gradients,
        "jax": _jax_gradients,
        "torch": _torch_gradients,
    }[backend]

    def gradients(model, x, y):
        def loss(prediction):
            return keras.ops.mean(keras.ops.square(prediction - y))

        found = compute(model, loss, x)
        return [np.asarray(keras.ops.convert_to_numpy(g), "float64") for g in found]

    return gradients


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    return (
        rng.normal(size=(16, 6)).astype("float32"),
        rng.normal(size=(16, 3)).astype("float32"),
    )


def dense_model():
    keras.utils.set_random_seed(11)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, activation="relu"),
            keras.layers.Dense(3),
        ]
    )


@pytest.fixture
def make_model():
    """Return a function that makes the same network every time."""
    return dense_model
