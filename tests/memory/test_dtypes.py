"""Types wider than their numbers need are found, and only these."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from keras import layers

from kerasmem.errors import ConfigError, ModelError
from kerasmem.memory.dtypes import inspect_dtypes


def found(**given):
    return {
        wide.where: (wide.dtype, wide.enough, wide.saved_bytes)
        for wide in inspect_dtypes(**given).wide
    }


def wide_model():
    keras.utils.set_random_seed(0)
    inner = keras.Sequential(
        [keras.Input((3,), dtype="float64"), layers.Dense(4, dtype="float64")],
        name="inner",
    )
    inputs = keras.Input((3,), dtype="float64")
    x = layers.Dense(2, name="head")(inner(inputs))
    return keras.Model(inputs, x)


@pytest.mark.one_backend
def test_images_kept_as_floats_are_bytes():
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4))
    as_bytes = ("uint8", 3 * 160)
    assert found(data=images.astype("float32")) == {"data x": ("float32", *as_bytes)}
    scaled = (images / 255).astype("float32")
    assert found(data=scaled) == {"data x": ("float32", *as_bytes)}


@pytest.mark.one_backend
def test_floats_that_are_no_integers_stay_floats():
    x = np.random.default_rng(0).normal(size=(10, 4))
    assert found(data=x.astype("float32")) == {}
    assert found(data=x) == {"data x": ("float64", "float32", 160)}
    assert found(data=np.full((3, 2), np.nan, "float32")) == {}
    assert found(data=np.full((3, 2), np.inf, "float32")) == {}


def test_doubles_are_no_wider_than_the_model_where_keras_trains_in_them():
    x = np.random.default_rng(0).normal(size=(10, 4))
    keras.config.set_floatx("float64")
    try:
        assert found(data=x) == {}
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.one_backend
def test_a_path_stands_for_the_samples_in_it(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.full((4, 3), 0.3), y=np.ones(4, "uint8"))
    assert found(data=tmp_path / "d.npz") == {"data x": ("float64", "float32", 48)}


@pytest.mark.one_backend
@given(
    numpy_strategies.arrays(
        st.sampled_from(["int32", "int64", "uint64", "float32", "float64"]),
        st.integers(1, 20),
        elements=st.integers(0, 300),
    )
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_every_number_survives_the_type_that_is_enough(x):
    for wide in inspect_dtypes(data=x).wide:
        np.testing.assert_array_equal(x.astype(wide.enough), x)
        assert wide.saved_bytes == x.nbytes - x.astype(wide.enough).nbytes > 0


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("largest", "enough"), [(255, "uint8"), (256, "int16"), (2**15, "int32")]
)
def test_the_largest_number_decides(largest, enough):
    assert found(data=np.array([0, largest]))["data x"][1] == enough
    assert found(data=np.array([2**31, 0])) == {}


@pytest.mark.one_backend
def test_a_number_at_the_end_of_a_large_array_is_seen():
    x = np.zeros(2**22 + 5, "float32")
    assert found(data=x)["data x"][1] == "uint8"
    x[-1] = 0.5
    assert found(data=x) == {}


@pytest.mark.one_backend
def test_inputs_by_name_and_labels_are_told_apart():
    data = ({"a": np.zeros((2, 2)), "b": np.ones((2, 2), "uint8")}, np.zeros(2))
    assert set(found(data=data)) == {"data x a", "data y"}


def test_embeddings_take_narrower_indices():
    model = keras.Sequential(
        [keras.Input((7,), dtype="int64"), layers.Embedding(10, 2, name="words")]
    )
    ((where, figures),) = found(model=model).items()
    assert where.startswith("input ")
    assert figures == ("int64", "int32", 28)


def test_a_model_without_doubles_comes_back_equal():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    narrowed = inspect_dtypes(model).narrow_model()
    for one, other in zip(narrowed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


if keras.backend.backend() != "jax":  # which makes float32 of float64

    def test_weights_in_doubles_are_named_with_what_they_cost():
        wide = inspect_dtypes(wide_model()).wide
        saved = {
            w.where.removeprefix("weight ").split("/")[-1]: w.saved_bytes for w in wide
        }
        assert saved == {"kernel": 3 * 4 * 4, "bias": 4 * 4}
        assert all((w.dtype, w.enough) == ("float64", "float32") for w in wide)

    def test_narrowed_weights_compute_the_same_to_single_precision():
        model = wide_model()
        model.compile("adam", "mse")  # whose slots stay behind
        model.optimizer.build(model.trainable_variables)
        narrowed = inspect_dtypes(model).narrow_model()
        x = np.random.default_rng(0).normal(size=(5, 3))
        assert {str(w.dtype) for w in narrowed.weights} == {"float32"}
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(narrowed(x.astype("float32"))),
            keras.ops.convert_to_numpy(model(x)),
            rtol=1e-5,
            atol=1e-6,
        )
        assert found(model=narrowed) == {}
        assert any(str(w.dtype) == "float64" for w in model.weights)

    def test_layers_that_a_class_creates_in_doubles_are_refused():
        class Fixed(keras.Model):
            def __init__(self, **options):
                super().__init__(**options)
                self.head = layers.Dense(2, dtype="float64", name="head")

            def call(self, x):
                return self.head(x)

        model = Fixed(name="fixed")
        model(np.zeros((1, 3)))
        with pytest.raises(ModelError, match="'fixed' creates float64.*: 'head'"):
            inspect_dtypes(model).narrow_model()


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="Expected: a model, data, or both"):
        inspect_dtypes()
    built = keras.Sequential([keras.Input((1,))])
    with pytest.raises(ConfigError, match="Received: dtype='int8'"):
        inspect_dtypes(built).narrow_model("int8")
    with pytest.raises(ConfigError, match="must be a model, to narrow it"):
        inspect_dtypes(data=np.zeros(3)).narrow_model()
    with pytest.raises(ModelError, match="has no weights yet"):
        inspect_dtypes(keras.Sequential([layers.Dense(2)]))
