"""A model in another process: what the config of its class does not tell."""

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.errors import ModelError
from kerasmem.graph.layers import sublayers
from kerasmem.graph.lora import has_lora
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.inputs import symbolic_batch, zeros
from kerasmem.processes.transfer import pack, unpack


@keras.saving.register_keras_serializable("tests")
class Pair(keras.Model):
    """A model like those of KerasHub: built by its constructor, from its arguments."""

    def __init__(self, units, **kwargs):
        inputs = keras.Input((8,))
        x = layers.Dense(units, name="first")(inputs)
        x = layers.BatchNormalization(name="norm")(x)
        super().__init__(inputs, layers.Dense(4, name="last")(x), **kwargs)
        self.units = units

    def get_config(self):
        return {"name": self.name, "units": self.units}


def there(model):
    model.compile("adam", "mse")
    return unpack(pack(model, model.optimizer, None), jit_compile=False)


def shapes(model):
    return [tuple(v.shape) for v in model.trainable_variables]


@pytest.mark.parametrize("scheme", [None, "int8"])
def test_lora_goes_with_a_model_that_its_arguments_make(scheme):
    model = Pair(16)
    if scheme:
        model = km.compress(model, km.Quantize(scheme), verbose=0).model
    model.get_layer("norm").trainable = False
    for name in ("first", "last"):
        model.get_layer(name).enable_lora(2)
    again = there(model)
    assert shapes(again) == shapes(model)
    assert (8, 2) in shapes(again)
    assert (8, 16) not in shapes(again)
    assert not again.get_layer("norm").trainable


def test_a_layer_that_two_others_know_is_one():
    tokens = keras.Input((None,), dtype="int32")
    table = layers.Embedding(20, 8)
    head = km.layers.ChunkedVocabulary(table)
    model = keras.Model(tokens, head(table(tokens)))
    model.compile("adam", km.layers.ChunkedCrossentropy())
    sent = pack(model, model.optimizer, None)
    assert sent == pack(model, model.optimizer, None)
    assert "'shared_object_id': 0" in str(sent["config"])
    again = unpack(sent, jit_compile=False)
    assert [tuple(v.shape) for v in again.weights] == [(20, 8)]
    ids, labels = symbolic_batch(asked(model))
    assert (ids.shape, labels.shape, labels.dtype) == ((4, 6), (4, 6), "int32")


def asked(model):
    return checked_request(model, 4, input_shape=(6,))


def test_a_frozen_layer_and_a_frozen_weight_stay_frozen():
    model = Pair(16)
    model.get_layer("first").trainable = False
    model.get_layer("last").bias.trainable = False
    again = there(model)
    assert shapes(again) == shapes(model) == [(16,), (16,), (16, 4)]
    assert not again.get_layer("first").trainable


def around_inputs_of_another():
    """Return a model around one that its arguments make, whose inputs it shares."""
    inside = Pair(16)
    x = layers.Dense(4, name="next")(inside(inside.input))
    return keras.Model(inside.input, layers.Dense(4, name="end")(x))


def test_a_model_around_the_inputs_of_another_has_its_own_layer_frozen():
    model = around_inputs_of_another()
    model.get_layer("end").trainable = False
    again = there(model)
    assert [w.trainable for w in again.weights] == [w.trainable for w in model.weights]
    assert shapes(again) == shapes(model)
    frozen = [one.name for one in sublayers(again) if not one.trainable]
    assert frozen == ["end"]


def test_a_model_around_the_inputs_of_another_has_lora_where_it_was():
    model = around_inputs_of_another()
    model.get_layer("end").enable_lora(2)
    again = there(model)
    assert shapes(again) == shapes(model)
    assert [x.name for x in sublayers(again) if has_lora(x)] == ["end"]


@keras.saving.register_keras_serializable("tests")
class Alternating(Pair):
    """Two optimizers, the second by an argument of its own in `compile`."""

    def compile(self, other, **settings):
        super().compile(**settings)
        self.other = other


def test_the_optimizers_of_a_compile_of_its_own_go_along():
    model = Alternating(16)
    other = keras.optimizers.Adam(0.125)
    model.compile(other, optimizer="sgd", loss="mse", metrics=["mae"])
    again = unpack(pack(model, model.optimizer, None), jit_compile=False)
    assert float(again.other.learning_rate) == 0.125
    assert again.loss == "mse"


@pytest.mark.one_backend
def test_an_adapted_vocabulary_goes_with_a_model():
    """Measured on empty texts, whose table exists in the child process only if sent."""
    lookup = layers.TextVectorization(10, output_sequence_length=4)
    lookup.adapt(["a b c d", "a b", "e f"])
    inputs = keras.Input((), dtype="string")
    table = layers.Flatten()(layers.Embedding(10, 6)(lookup(inputs)))
    model = keras.Model(inputs, layers.Dense(3)(table))
    again = there(model)
    (copied,) = (x for x in again.layers if isinstance(x, layers.TextVectorization))
    assert copied.get_vocabulary() == lookup.get_vocabulary()
    step = zeros(checked_request(model, 8))
    assert np.isfinite(again.train_on_batch(*step[:2]))


def test_an_idf_table_goes_with_an_adapted_vocabulary():
    lookup = layers.IntegerLookup(max_tokens=9, output_mode="tf_idf")
    lookup.adapt(np.array([[3, 5], [5, 7], [3, 3]]))
    inputs = keras.Input((2,), dtype="int64")
    model = keras.Model(inputs, layers.Dense(2)(lookup(inputs)))
    again = there(model)
    x = np.array([[3, 7], [9, 5]])
    (copied,) = (y for y in again.layers if isinstance(y, layers.IntegerLookup))
    np.testing.assert_allclose(copied(x), lookup(x))


SCALE = 2.0


def test_a_lambda_finds_the_globals_of_its_module():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", lambda y, z: SCALE * keras.ops.mean((y - z) ** 2))
    x = np.ones((4, 3), "float32")
    expected = model.evaluate(x, x[:, :2], verbose=0)
    again = unpack(pack(model, model.optimizer, None), jit_compile=False)
    again.set_weights(model.get_weights())
    assert again.evaluate(x, x[:, :2], verbose=0) == pytest.approx(expected, rel=1e-6)


class Composed(keras.Model):
    """Takes two models, has no `call` and no `get_config`, as in Keras's guides."""

    def __init__(self, encoder, decoder, weight=0.5, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder, self.weight = encoder, decoder, weight


def test_a_model_of_models_without_a_config_is_made_of_its_arguments():
    encoder = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
    decoder = keras.Sequential([keras.Input((3,)), layers.Dense(8)])
    decoder.layers[0].trainable = False
    model = Composed(encoder, decoder, weight=0.25)
    model.compile("adam", "mse")
    again = unpack(pack(model, model.optimizer, None), jit_compile=False)
    assert type(again) is Composed
    assert again.weight == 0.25
    assert shapes(again) == shapes(model) == [(8, 3), (3,)]


def test_a_model_whose_arguments_are_not_kept_is_refused():
    class Lost(keras.Model):
        def __init__(self, part, **kwargs):
            super().__init__(**kwargs)
            self.inner = part

    part = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
    with pytest.raises(ModelError, match="does not describe it"):
        pack(Lost(part), None, None)
