"""Copies without a file, and models of the layers of another one."""

import keras
import numpy as np
import pytest

from kerasmem.graph.clone import clone, reloaded, unchanged_state
from kerasmem.graph.from_config import made_of_config
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import FAMILIES
from tests.models import KINDS, Counting, L, chain

X, Y = np.ones((16, 6), "float32"), np.ones((16, 2), "float32")


def net(*more):
    keras.utils.set_random_seed(5)
    model = chain((6,), L.Dense(8), *more, L.BatchNormalization(), L.Dense(2))
    model.compile("adam", "mse", metrics=["mae"])
    return model


def by_config(model):
    return made_of_config(model, sublayers(model))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_copy_is_that_which_a_file_gives(kind):
    model = KINDS[kind].make()
    copy = by_config(model)
    if copy is not None:
        assert_equal(copy, reloaded(model))


@pytest.mark.parametrize("family", ["Bert", "Bart"])
def test_models_of_keras_hub_take_no_file(family):
    model = FAMILIES[family]()
    assert_equal(by_config(model), reloaded(model))


def assert_equal(copy, other):
    assert type(copy) is type(other)
    assert copy.get_config() == other.get_config()
    for one, two in zip(copy.weights, other.weights, strict=True):
        assert (one.path, one.dtype, one.trainable) == (
            two.path,
            two.dtype,
            two.trainable,
        )
        np.testing.assert_array_equal(to_numpy(one), to_numpy(two))


def test_plain_models_take_no_file():
    assert by_config(net(L.Dropout(0.5), L.Reshape((8,)))) is not None


def test_lora_is_copied_beside_its_kernel():
    model = net()
    model.layers[1].enable_lora(2, lora_alpha=3)
    for weight in model.layers[1].trainable_weights:
        weight.assign(weight + 0.1)
    copy = by_config(model)
    assert copy.layers[1].lora_enabled
    for own, other in zip(copy.weights, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(own), to_numpy(other))
    np.testing.assert_array_equal(to_numpy(copy(X)), to_numpy(model(X)))


@pytest.mark.one_backend
def test_what_keeps_more_than_variables_takes_a_file():
    scaled = L.Normalization()
    scaled.adapt(X)
    assert by_config(chain((6,), scaled)) is None
    assert by_config(chain((6,), L.Lambda(abs))) is None
    beside = net()
    beside.more = L.Dense(3)
    beside.more.build((None, 2))
    assert by_config(beside) is None
    assert by_config(net(type("Own", (L.Dense,), {})(8))) is None


# torch.compile needs a compiler of C++.
@pytest.mark.parametrize(
    "jit", [False] if keras.backend.backend() == "torch" else [False, True]
)
def test_neither_training_reaches_the_other_model(jit):
    model = net()
    model.compile("adam", "mse", jit_compile=jit)
    copy = clone(model)
    before = model.get_weights()
    copy.fit(X, Y, verbose=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    trained = copy.get_weights()
    model.fit(X, Y, verbose=0)
    for one, other in zip(trained, copy.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_evaluation_of_a_copy_leaves_the_model_and_its_states(backend):
    inputs = keras.Input(batch_shape=(2, 3, 4))
    stateful = keras.Model(inputs, L.LSTM(2, stateful=True)(inputs))
    asked = keras.Input((4,))
    counting = keras.Model(asked, Counting()(asked))
    for model in (stateful, counting):
        model.compile("sgd", "mse")
        x = np.ones((2, *model.input_shape[1:]), "float32")
        y = np.zeros((2, *model.output_shape[1:]), "float32")
        model.evaluate(x, y, verbose=0)
        before = states(model)
        functions = (model.test_function, model.predict_function)
        copy = clone(model)
        at_first = states(copy)
        with unchanged_state(copy):
            copy.evaluate(x, y, batch_size=2, verbose=0)
            is_changed = not all(map(np.array_equal, at_first, states(copy)))
        # JAX does not carry the states of recurrent layers from batch to batch.
        assert is_changed == (backend != "jax" or model is not stateful)
        assert all(map(np.array_equal, at_first, states(copy)))
        assert (model.test_function, model.predict_function) == functions
        assert all(map(np.array_equal, before, states(model)))


def states(model):
    recurrent = keras.tree.flatten(getattr(model.layers[-1], "states", None) or [])
    return [np.array(to_numpy(v)) for v in (*model.variables, *recurrent)]


@pytest.mark.parametrize("layer", [L.SpatialDropout1D, L.Dropout])
def test_a_copy_computes_in_the_types_of_the_model(layer):
    model = chain((4, 6), L.Dense(8), layer(0.3, dtype="mixed_float16"), L.Dense(2))
    policies = [one.dtype_policy for one in model.layers]
    assert [one.dtype_policy for one in clone(model).layers] == policies
