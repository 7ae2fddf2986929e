"""Layers that read the weights of another layer stay tied in rebuilt models."""

import keras
import numpy as np
import pytest
from keras import ops

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ModelError
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy

L = keras.layers


@keras.saving.register_keras_serializable("tied_layers")
class Transposed(L.Layer):
    """Multiplies by the transposed kernel or table of another layer."""

    def __init__(self, source, **options):
        super().__init__(**options)
        self.source = source

    def call(self, x):
        is_dense = isinstance(self.source, L.Dense)
        weight = self.source.kernel if is_dense else self.source.embeddings
        return ops.matmul(x, ops.transpose(weight))

    def get_config(self):
        source = keras.saving.serialize_keras_object(self.source)
        return {**super().get_config(), "source": source}

    @classmethod
    def from_config(cls, config):
        source = keras.saving.deserialize_keras_object(config.pop("source"))
        return cls(source, **config)


@keras.saving.register_keras_serializable("tied_layers")
class Copying(Transposed):
    """Has the config of the other layer in its own, not the layer."""

    def get_config(self):
        return {**L.Layer.get_config(self), "source": self.source.get_config()}

    @classmethod
    def from_config(cls, config):
        return cls(L.Dense.from_config(config.pop("source")), **config)


def autoencoder(kind=Transposed):
    first, second = L.Dense(12, name="first"), L.Dense(4, name="second")
    x = keras.Input((16,))
    code = second(L.ReLU()(L.BatchNormalization()(first(x))))
    hidden = L.ReLU()(L.Dense(12, name="free")(L.Dense(12)(Transposed(second)(code))))
    model = keras.Model(x, kind(first, name="reader")(hidden))
    model.compile("adam", "mse")
    return model, np.random.default_rng(0).normal(size=(32, 16)).astype("float32")


def language_model():
    table = L.Embedding(20, 8, name="first")
    ids = keras.Input((6,), dtype="int32")
    x = table(ids)
    x = x + L.Dense(8)(L.Dense(32, "gelu", name="free")(x))
    model = keras.Model(ids, Transposed(table, name="reader")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model, np.random.default_rng(0).integers(0, 20, (32, 6))


def check_tied(model):
    assert model.get_layer("reader").source is model.get_layer("first")


@pytest.mark.parametrize("make", [autoencoder, language_model])
def test_a_rebuilt_model_is_tied_before_and_after_training(make):
    model, x = make()
    rebuilt = Rebuild(Rewrite()).run(model)
    check_tied(rebuilt)
    assert rebuilt.count_params() == model.count_params()
    np.testing.assert_array_equal(to_numpy(rebuilt(x)), to_numpy(model(x)))
    rebuilt.compile("sgd", model.loss, run_eagerly=True)
    before = to_numpy(rebuilt.get_layer("first").weights[0])
    rebuilt.fit(x, x, verbose=0)
    check_tied(rebuilt)
    after = to_numpy(rebuilt.get_layer("first").weights[0])
    assert np.abs(after - before).max() > 0


def test_channels_of_the_others_go_and_tied_weights_stay():
    model, _ = language_model()
    model.optimizer.build(model.trainable_variables)
    for smaller in (
        apply_technique(km.PruneChannels(0.25, of="channels"), model)[0],
        km.make_student(model, 0.75, of="channels"),
    ):
        check_tied(smaller)
        assert smaller.get_layer("free").units == 24
        assert smaller.count_params() == 20 * 8 + 8 * 24 + 24 + 24 * 8 + 8


def test_tied_weights_are_neither_folded_nor_factorized_nor_equalized():
    model, x = autoencoder()
    expected = to_numpy(model(x))
    with pytest.raises(ModelError, match="'first', whose weights 'reader' reads too"):
        km.compress(model, km.FoldBatchNorm())
    smaller, changes = apply_technique(km.Factorize(0.3), model)
    check_tied(smaller)
    reasons = [c.detail for c in changes if c.layer in ("first", "second")]
    assert reasons[0] == "is read by 'reader' too"
    equal = km.compress(model, km.Equalize()).model
    check_tied(equal)
    np.testing.assert_allclose(to_numpy(equal(x)), expected, atol=1e-5)


def test_pruning_in_fit_keeps_them_tied():
    model, x = autoencoder()
    model.fit(
        x, x, epochs=3, verbose=0, callbacks=[km.callbacks.Pruning(km.Prune(0.5))]
    )
    check_tied(model)
    kernel = to_numpy(model.get_layer("second").kernel)
    assert np.mean(kernel == 0) == pytest.approx(0.5, abs=0.02)


def test_int8_static_keeps_the_weights_that_another_layer_reads():
    model, x = autoencoder()
    expected = to_numpy(model(x))
    small = km.compress(model, km.Quantize("int8-static"), data=x).model
    error = np.linalg.norm(to_numpy(small(x)) - expected)
    assert error < 0.05 * np.linalg.norm(expected)


def test_a_reader_may_come_first():
    source = L.Dense(3, name="first")
    source.build((None, 5))
    x, y = keras.Input((3,)), keras.Input((5,))
    late = L.Dense(2)(L.Dense(5)(L.Dense(5)(y)))
    model = keras.Model([x, y], [Transposed(source, name="reader")(x), source(y), late])
    rebuilt = Rebuild(Rewrite()).run(model)
    check_tied(rebuilt)
    assert rebuilt.count_params() == model.count_params()


def test_a_config_without_the_other_layer_is_named():
    model, _ = autoencoder(Copying)
    with pytest.raises(ModelError, match="'reader' reads the weights of 'first', but"):
        Rebuild(Rewrite()).run(model)
