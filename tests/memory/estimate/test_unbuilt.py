"""Estimates of a model that Keras builds in the first `fit`."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ModelError

X, IDS = np.ones((9, 8, 8, 3), "float32"), np.ones((9, 12), "int32")


def convolutions(*first):
    layers = keras.layers
    flat = layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(3)
    return keras.Sequential([*first, *flat])


def recurrent(*first):
    layers = keras.layers
    return keras.Sequential([*first, layers.Embedding(50, 8), layers.LSTM(4)])


@keras.saving.register_keras_serializable("test_unbuilt")
class Two(keras.Model):
    """A subclassed model without a `get_config`, with a dict of inputs."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, x):
        return self.dense(x["a"]) + x["b"]


@pytest.mark.parametrize(("make", "x"), [(convolutions, X), (recurrent, IDS)])
@pytest.mark.parametrize("of", ["data", "input_shape"])
def test_it_is_that_of_the_built_model_and_the_model_stays_unbuilt(make, x, of):
    model, built = make(), make(keras.Input(x.shape[1:]))
    for each in (model, built):
        each.compile("adam", "mse", metrics=["mae"])
    argument = {of: x if of == "data" else x.shape[1:]}
    estimate = km.estimate_memory(model, 8, **argument)
    assert estimate.by_category() == km.estimate_memory(built, 8).by_category()
    assert not model.built
    assert not model.weights


def test_a_subclassed_model_is_built_by_its_samples():
    model = Two()
    model.compile("sgd", "mse")
    inputs = {"a": np.ones((9, 4), "float32"), "b": np.ones((9, 5), "float32")}
    estimate = km.estimate_memory(model, 8, data=(inputs, inputs["b"]))
    assert estimate.by_category()["parameter"] == 4 * (4 * 5 + 5)
    assert not model.built


def test_samples_that_the_model_does_not_take():
    with pytest.raises(ModelError, match=r"cannot be built\. Received: .* Next: pass"):
        km.estimate_memory(convolutions(), 8, optimizer="adam", data=np.ones((9, 2)))


def test_without_a_shape_the_arguments_are_named():
    with pytest.raises(ModelError, match="no weights yet.*input_shape= or data="):
        km.estimate_memory(convolutions(), 8, optimizer="adam")
