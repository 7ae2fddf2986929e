"""Estimates of a model that Keras builds in the first `fit`."""

import random

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, ModelError
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.variables import persistent_parts

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
    with pytest.raises(ModelError, match=r"cannot be built\. Received: .* Next: call"):
        km.estimate_memory(convolutions(), 8, optimizer="adam", data=np.ones((9, 2)))


def test_without_a_shape_the_arguments_are_named():
    with pytest.raises(ModelError, match="no weights yet.*input_shape= or data="):
        km.estimate_memory(convolutions(), 8, optimizer="adam")


@pytest.mark.parametrize("shape", [5, (5.0,), (-5,), "five", {"a": (0,)}])
def test_what_is_no_shape_is_refused(shape):
    model = keras.Sequential([keras.layers.Dense(8)])
    with pytest.raises(ConfigError, match="input shape does not fit"):
        km.estimate_memory(model, 8, optimizer="adam", input_shape=shape)


def test_a_list_of_one_shape_is_taken_as_from_the_command():
    model = keras.Sequential([keras.layers.Dense(8)])
    estimate = km.estimate_memory(model, 8, optimizer="sgd", input_shape=[(5,)])
    assert estimate.by_category()["parameter"] == 4 * (5 * 8 + 8)


class Frozen(keras.Model):
    """Made of a part that is frozen afterwards."""

    def __init__(self):
        super().__init__()
        self.base = keras.Sequential([keras.layers.Dense(50)])
        self.head = keras.layers.Dense(2)

    def call(self, x):
        return self.head(self.base(x))


def test_what_is_frozen_stays_frozen_and_chance_goes_on_as_before():
    x = np.ones((9, 10), "float32")
    estimates = []
    for is_built in (False, True):
        model = Frozen()
        model.base.trainable = False
        model.compile("adam", "mse")
        if is_built:
            model(x)
        state = random.getstate()
        found = checked_request(model, 4, device="cpu", data=(x, x[:, :2]))
        assert random.getstate() == state
        estimates.append(persistent_parts(found))
    sizes = [sum(part.nbytes for part in parts) for parts in estimates]
    assert sizes[0] == sizes[1]


def test_a_model_of_models_without_a_config_is_copied_by_its_arguments():
    parts = [keras.Sequential([keras.layers.Dense(n)]) for n in (1, 6)]
    model = OfTwo(*parts)
    x = np.ones((9, 4), "float32")
    found = checked_request(model, 4, optimizer="sgd", device="cpu", data=(x, x))
    assert found.model.count_params() == (4 * 6 + 6) + (6 * 1 + 1)


class OfTwo(keras.Model):
    def __init__(self, last, first):
        super().__init__()
        self.last, self.first = last, first

    def call(self, x):
        return self.last(self.first(x))
