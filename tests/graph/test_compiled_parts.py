"""Copies of models with parts that were compiled, or that assign in their call."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.from_config import made_of_config
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy
from tests.models import L, chain

X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")


def trained_part():
    part = chain((6,), L.Dense(4, "relu"), L.Dense(3))
    part.compile("adam", "mse")
    part.fit(X, X[:, :3], verbose=0)
    return part


def in_time():
    x = keras.Input((2, 6))
    return keras.Model(x, L.TimeDistributed(trained_part())(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: chain((6,), trained_part(), L.Dense(2)),
        lambda: chain((6,), chain((6,), trained_part()), L.Dense(2)),
        in_time,
    ],
    ids=["sequential", "two levels deep", "TimeDistributed"],
)
def test_a_part_that_was_compiled_is_copied_from_its_config(make):
    model = make()
    model.compile("sgd", "mse")
    x = np.resize(X, (16, *model.input_shape[1:]))
    assert made_of_config(model, sublayers(model)) is not None
    copy = clone(model)
    np.testing.assert_array_equal(to_numpy(copy(x)), to_numpy(model(x)))
    assert isinstance(copy.optimizer, keras.optimizers.SGD)


def test_a_teacher_with_an_input_that_it_does_not_use():
    used, unused = keras.Input((6,), name="used"), keras.Input((2,), name="unused")
    outputs = trained_part()(used)
    models = [keras.Model([used, unused], outputs) for _ in range(2)]
    for model in models:
        model.compile("sgd", "mse")
    x = {"used": X, "unused": X[:, :2]}
    student = km.distill(*models, (x, X[:, :3]), epochs=1, verbose=0)
    assert np.isfinite(to_numpy(student(x))).all()


def test_a_part_that_was_compiled_is_mapped_from_its_file(tmp_path):
    model = chain((6,), trained_part(), L.Dense(2))
    km.save_model(model, tmp_path / "model.keras", coding="stored")
    mapped = km.load_model(tmp_path / "model.keras", memory_map=True)
    np.testing.assert_array_equal(to_numpy(mapped(X)), to_numpy(model(X)))


@keras.saving.register_keras_serializable("test_compiled_parts")
class Sampling(L.Layer):
    """Draws around a mean, as the encoder of a VAE does, and counts its calls."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed = keras.random.SeedGenerator(3)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, mean):
        """Return samples."""
        self.calls.assign_add(1.0)
        return mean + 0 * keras.random.normal(keras.ops.shape(mean), seed=self.seed)


def test_a_layer_that_draws_and_counts_is_copied_and_rebuilt():
    model = chain((6,), L.Dense(8, use_bias=False), L.BatchNormalization(), Sampling())
    model(X)
    copies = clone(model), km.compress(model, km.FoldBatchNorm()).model
    expected = to_numpy(model(X))
    for copy in copies:
        assert type(copy.layers[-1]) is Sampling
        assert float(copy.layers[-1].calls) == 1
        np.testing.assert_allclose(to_numpy(copy(X)), expected, rtol=1e-4, atol=1e-5)
        assert float(copy.layers[-1].calls) == 2


@keras.saving.register_keras_serializable("tests")
class OwnCompile(keras.Model):
    """Takes an argument in `compile` that Keras does not record."""

    def compile(self, second_optimizer, **settings):
        super().compile(**settings)
        self.second_optimizer = second_optimizer


@pytest.mark.one_backend
def test_a_model_with_arguments_of_its_own_in_compile_is_copied_compiled():
    inputs = keras.Input((64,))
    model = OwnCompile(inputs, keras.layers.Dense(64)(inputs))
    model.compile(keras.optimizers.Adam(), optimizer="sgd", loss="mse")
    x = np.random.default_rng(0).normal(size=(8, 64)).astype("float32")
    result = km.compress(model, km.Quantize("int8"))
    assert isinstance(result.model, OwnCompile)
    assert result.model.compiled
    assert result.model.loss == "mse"
    assert isinstance(result.model.second_optimizer, keras.optimizers.Adam)
    assert result.model.second_optimizer is not model.second_optimizer
    error = np.abs(result.model(x) - model(x)).max()
    assert error < 0.03 * np.abs(model(x)).max()
