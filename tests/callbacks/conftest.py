"""A network small enough to recompute, and gradients from the frameworks themselves."""

import logging
import os
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from kerasmem import backends


def _mean_squared_error(prediction, y):
    return keras.ops.mean(keras.ops.square(keras.ops.subtract(prediction, y)))


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
            return _mean_squared_error(prediction, y)

        found = compute(model, loss, x)
        return [np.asarray(keras.ops.convert_to_numpy(g), "float64") for g in found]

    return gradients


class OwnStep(keras.Model):
    """Trains on half the mean squared error, in a step written by hand."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x, training=None):
        return self.inner(x, training=training)


class TensorFlowStep(OwnStep):
    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = _mean_squared_error(self(x, training=True), y) / 2
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(
            zip(gradients, self.trainable_variables, strict=True)
        )
        return {"loss": loss}


class JaxStep(OwnStep):
    def train_step(self, state, data):
        import jax

        trainable, fixed, optimizer_variables, metrics = state
        x, y = data

        def half_error(trainable):
            prediction, new = self.stateless_call(trainable, fixed, x, training=True)
            return _mean_squared_error(prediction, y) / 2, new

        value = jax.value_and_grad(half_error, has_aux=True)
        (loss, fixed), gradients = value(trainable)
        trainable, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, gradients, trainable
        )
        return {"loss": loss}, (trainable, fixed, optimizer_variables, metrics)


class TorchStep(OwnStep):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = _mean_squared_error(self(x, training=True), y) / 2
        loss.backward()
        gradients = [v.value.grad for v in self.trainable_variables]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@pytest.fixture
def own_step(backend):
    """Return the class of a model around another, with a `train_step` of its own."""
    return {"tensorflow": TensorFlowStep, "jax": JaxStep, "torch": TorchStep}[backend]


@pytest.fixture(autouse=True)
def _no_word_is_missed(request):
    """Let no test pass over a warning that a monitor logs, because warnings are errors.

    One that expects it takes `caplog`.
    """
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("kerasmem")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    if "caplog" not in request.fixturenames:
        assert told == []


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


@pytest.fixture
def devices(monkeypatch):
    """Return a function that puts a fake backend in place of the running one."""

    def use(fake):
        monkeypatch.setattr(backends, "current", lambda: fake)
        return fake

    return use


@pytest.fixture
def fit(make_model, data):
    """Return a function that fits a small network and returns its history."""

    def run(*callbacks, **arguments):
        model = make_model()
        model.compile("sgd", loss="mse")
        options = {"batch_size": 2, "verbose": 0} | arguments
        return model.fit(*data, callbacks=list(callbacks), **options).history

    return run


# What is about one framework runs where the suite runs on it, and is no skipped test
# elsewhere. Keras trains on one device on torch.
_BACKEND = os.environ.get("KERAS_BACKEND")
collect_ignore = [
    f"test_memory_on_{name}.py" for name in ("tensorflow", "jax") if name != _BACKEND
]
collect_ignore += [] if find_spec("keras_tuner") else ["test_in_keras_tuner.py"]
collect_ignore += [
    "test_on_two_devices.py" if _BACKEND == "torch" else "test_torch_compile.py"
]
