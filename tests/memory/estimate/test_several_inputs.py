"""Models without a graph that take several inputs, as Keras was shown them."""

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.errors import ConfigError
from kerasmem.memory.estimate.inputs import checked_inputs, lengths_in
from tests.models import OfTwoInputs

FORMS = ("dict", "list", "tuple", "nested")
IMAGE, META = (28, 28, 4), (28, 28, 3)
BATCH = 16


def built(form):
    model = OfTwoInputs(form)
    model(model.joined(*(np.zeros((2, *shape), "float32") for shape in (IMAGE, META))))
    model.compile("sgd", "mse", jit_compile=False)
    return model


def reloaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


def cloned(model, _):
    return keras.models.clone_model(model)


def same_as_graph():
    inputs = image, meta = [keras.Input(IMAGE), keras.Input(META)]
    joined = layers.Add()(
        [layers.Dense(64, activation="relu")(image), layers.Dense(64)(meta)]
    )
    return keras.Model(inputs, layers.Dense(3)(joined))


@pytest.mark.one_backend
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("made", [lambda model, _: model, cloned, reloaded])
def test_every_input_has_the_shape_that_the_model_was_built_with(form, made, tmp_path):
    found = checked_inputs(made(built(form), tmp_path), BATCH, None)
    names = {
        "dict": {"picture": IMAGE, "meta": META},
        "nested": {"pictures.0": IMAGE, "meta": META},
    }.get(form, {"0": IMAGE, "1": META})
    assert {x.name: x.shape for x in found} == {
        name: (BATCH, *shape) for name, shape in names.items()
    }


# On torch Keras's own run of a graph keeps more than a `call` does.
@pytest.mark.one_backend
def test_a_step_needs_what_the_same_layers_in_a_graph_need():
    options = {"method": "traced", "device": "cpu", "optimizer": "adam"}
    expected = km.estimate_memory(same_as_graph(), BATCH, **options)
    found = km.estimate_memory(built("nested"), BATCH, **options)
    assert found.peak_bytes == pytest.approx(expected.peak_bytes, rel=0.02)


@pytest.mark.one_backend
def test_open_lengths_are_given_by_name_or_in_order():
    model = OfTwoInputs("dict")
    shapes = (None, None, 4), (None, None, 3)
    model(model.joined(*map(keras.KerasTensor, shapes)))
    for shape in ({"picture": (9, 4), "meta": (9, 3)}, [(9, 3), (9, 4)]):
        found = checked_inputs(model, 2, shape)
        assert {x.name: x.shape for x in found} == {
            "picture": (2, 9, 4),
            "meta": (2, 9, 3),
        }
    with pytest.raises(ConfigError, match=r"one per input of \['meta', 'picture'\]"):
        checked_inputs(model, 2, {"image": (9, 4)})


def test_example_data_says_other_lengths_than_the_model_was_built_with():
    model = built("dict")
    data = {"picture": np.zeros((5, 14, 14, 4)), "meta": np.zeros((5, 14, 14, 3))}
    found = lengths_in(model, data)
    assert found == {"picture": (14, 14, 4), "meta": (14, 14, 3)}
    small, large = (
        km.estimate_memory(model, BATCH, device="cpu", method="traced", data=given)
        for given in (data, None)
    )
    assert small.peak_bytes < 0.5 * large.peak_bytes


class Heads(layers.Layer):
    """A product as in Qwen3.5: Keras leaves the length of its output open."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.EinsumDense("bqm,muh->bquh", output_shape=(None, 2, 8))

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        heads = self.dense(x)
        shape = keras.ops.shape(heads)
        return keras.ops.reshape(heads, (shape[0], shape[1], -1))

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.one_backend
def test_a_length_is_known_behind_a_product_that_leaves_it_open():
    def estimate(product, length):
        inputs = keras.Input((None, 16))
        x = layers.Activation("relu")(product(inputs))
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile("sgd", "mse")
        return km.estimate_memory(model, 64, input_shape=(length, 16))

    for length in 12, 48:
        one = estimate(Heads(), length)
        other = estimate(layers.Dense(16, use_bias=False), length)
        assert one.by_category() == other.by_category()
        assert one.by_category()["activation"] == 64 * length * 16 * 4


@pytest.mark.one_backend
def test_a_model_of_open_lengths_inside_is_rematerialized():
    inputs = keras.Input((None, 16))
    x = layers.Activation("relu")(Heads()(layers.Dense(16, "gelu")(inputs)))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("sgd", "mse")
    lean = km.rematerialize(model, segments=2, input_shape=(12, 16))
    batch = np.ones((2, 12, 16), "float32")
    np.testing.assert_allclose(*map(np.asarray, (lean(batch), model(batch))), rtol=1e-5)
