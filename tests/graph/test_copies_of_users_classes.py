"""Copies of models with classes as packages write them."""

import sys
import types

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
from kerasmem.memory.dtypes import inspect_dtypes
from tests.models import L, chain

pytestmark = pytest.mark.one_backend
X = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")


class WithoutConfig(L.Layer):
    """Takes neither `**kwargs` nor a name."""

    def __init__(self, units, scale=1.0):
        super().__init__()
        self.dense, self.scale = L.Dense(units), scale

    def call(self, x):
        """Return a scaled product."""
        return self.scale * self.dense(x)


class Omitting(L.Layer):
    """Its `get_config` omits the number of units."""

    def __init__(self, units, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.factor = L.Dense(units), scale

    def get_config(self):
        """Return nothing but the name."""
        return super().get_config()

    def call(self, x):
        """Return a scaled product."""
        return self.factor * self.dense(x)


class Raising(WithoutConfig):
    """Its `get_config` raises an error."""

    def get_config(self):
        """Read an attribute that is missing."""
        return {"units": self.units}


class Subclassed(keras.Model):
    """A model of such layers, with an initializer as argument."""

    def __init__(self, units, kernel_initializer):
        super().__init__()
        self.units, self.kernel_initializer = units, kernel_initializer
        self.inner = WithoutConfig(units, 3.0)
        self.head = L.Dense(2, kernel_initializer=kernel_initializer)

    def call(self, x):
        """Return two outputs."""
        return self.head(self.inner(x))


def subclassed():
    model = Subclassed(3, keras.initializers.HeNormal())
    model(X)
    return model


def assert_copied(model):
    copy = clone(model)
    assert len(copy.weights) == len(model.weights) > 0
    np.testing.assert_array_equal(to_numpy(copy(X)), to_numpy(model(X)))


@pytest.mark.parametrize("kind", [WithoutConfig, Omitting, Raising])
def test_arguments_that_keras_recorded_complete_a_config(kind):
    layer = kind(5, scale=2.0)
    model = chain((6,), layer, L.Dense(2))
    attributes = {*vars(layer)}
    assert_copied(model)
    assert {*vars(layer)} == attributes


@pytest.mark.parametrize(
    "copied",
    [
        clone,
        lambda model: km.rematerialize(model, segments=2),
        lambda model: km.compress(model, km.Prune(0.5)).model,
    ],
    ids=["clone", "rematerialize", "prune"],
)
def test_a_copy_scales_the_loss_although_the_default_policy_changed(copied):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = chain((6,), L.Dense(8, activation="relu"), L.Dense(4), L.Dense(1))
        model.compile("adam", "mse")
    finally:
        keras.config.set_dtype_policy(before)
    copy = copied(model)
    assert copy.dtype_policy.name == "mixed_float16"
    assert isinstance(copy.optimizer, keras.optimizers.LossScaleOptimizer)
    assert keras.config.dtype_policy() is before


def test_a_subclassed_model_without_kwargs_is_copied_and_quantized():
    model = subclassed()
    assert_copied(model)
    result = km.compress(model, km.Quantize("int8"))
    np.testing.assert_allclose(
        to_numpy(result.model(X)), to_numpy(model(X)), rtol=0.1, atol=0.1
    )


class OfObject(L.Layer):
    """Takes an argument that no config can hold."""

    def __init__(self, settings, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(settings["units"](2))

    def call(self, x):
        """Return a product."""
        return self.dense(x)


def test_the_error_has_the_whole_cause_and_a_step_that_applies():
    model = chain((6,), OfObject({"units": abs}))
    message = (
        r"cannot be copied.*Received: Object OfObject was created by passing "
        r"non-serializable.*Next: add a `get_config` to this class"
    )
    with pytest.raises(ModelError, match=message) as raised:
        clone(model)
    assert "lambda" not in str(raised.value)
    assert "Example" not in str(raised.value)


@keras.saving.register_keras_serializable("test_copies")
class Wordy(L.Layer):
    """Cannot be made of its config, for a cause that comes late."""

    def call(self, x):
        return x

    @classmethod
    def from_config(cls, config):
        raise ValueError(f"{'It was looked at. ' * 40}The cause is the last word.")


def test_a_long_cause_is_not_cut():
    with pytest.raises(ModelError, match="The cause is the last word"):
        clone(chain((6,), Wordy()))


SCALE = 3.0


@pytest.mark.filterwarnings("ignore:.*includes a `lambda`")
@pytest.mark.parametrize("layer", [L.Dense, WithoutConfig])
def test_a_lambda_loss_keeps_its_globals(layer):
    model = chain((6,), layer(2))
    loss = lambda y_true, y_pred: SCALE * keras.ops.square(y_true - y_pred)  # noqa: E731
    model.compile("sgd", loss, metrics=[loss])
    expected = model.evaluate(X, X[:, :2], verbose=0)
    assert clone(model).evaluate(X, X[:, :2], verbose=0) == pytest.approx(expected)
    tuned = km.compress(
        model, km.Prune(0.5), data=(X, X[:, :2]), fine_tune_epochs=1
    ).model
    assert np.isfinite(tuned.evaluate(X, X[:, :2], verbose=0)[0])
    aware = km.quantization_aware(model, km.Quantize("int8"))
    assert np.isfinite(aware.evaluate(X, X[:, :2], verbose=0)[0])


def test_a_lambda_of_an_interactive_session_is_one_clear_error(tmp_path):
    model, scope = chain((6,), L.Dense(2)), {}
    exec("loss = lambda y_true, y_pred: y_pred", scope)
    model.compile("sgd", scope["loss"])
    with pytest.raises(ModelError, match="lambda without source code"):
        km.compress(model, km.Prune(0.5))
    with pytest.raises(ModelError, match="lambda without source code"):
        km.save_model(model, tmp_path / "model.keras")
    assert not [*tmp_path.iterdir()]


def test_a_float_export_needs_no_copy(tmp_path):
    model = chain((6,), OfObject({"units": abs}))
    km.export(model, tmp_path / "model.tflite", samples=X)
    assert (tmp_path / "model.tflite").stat().st_size > 0


def module_with_scale(monkeypatch, name, factor):
    """Return a class `Scale` that Keras finds by its module."""

    def call(self, x):
        return factor * x

    scale = type("Scale", (L.Layer,), {"call": call, "__module__": name})
    module = types.ModuleType(name)
    module.Scale = scale
    monkeypatch.setitem(sys.modules, name, module)
    return scale


def test_classes_of_one_name_are_told_apart_by_module(monkeypatch):
    scales = [
        module_with_scale(monkeypatch, f"keras_cv.test_{factor}", factor)
        for factor in (2.0, 3.0)
    ]
    model = chain((6,), L.Dense(2), *(scale() for scale in scales))
    assert_copied(model)
    assert [type(x) for x in clone(model).layers[-2:]] == scales


def test_classes_of_one_name_are_told_apart_by_registered_package():
    scales = []
    for factor in (2.0, 3.0):

        @keras.saving.register_keras_serializable(f"test_package_{factor}")
        class Scale(L.Layer):
            def call(self, x, factor=factor):
                return factor * x

        scales.append(Scale)
    model = chain((6,), L.Dense(2), *(scale() for scale in scales))
    assert_copied(model)
    assert [type(x) for x in clone(model).layers[-2:]] == scales


def tied_llama():
    models = pytest.importorskip("keras_hub").models
    sizes = {"vocabulary_size": 11, "num_layers": 1, "num_query_heads": 2}
    sizes |= {"num_key_value_heads": 1, "hidden_dim": 8, "intermediate_dim": 8}
    llama = models.LlamaBackbone(**sizes, tie_word_embeddings=True)
    return models.LlamaCausalLM(backbone=llama, preprocessor=None)


def test_a_tied_llama_stays_tied_in_copies_and_files(tmp_path):
    model = tied_llama()
    llama = model.backbone
    copy = clone(model)
    assert copy.backbone.tie_word_embeddings
    assert len(copy.weights) == len(model.weights)
    km.compress(model, km.Quantize("int8"), output=tmp_path / "model.keras")
    loaded = km.load_model(tmp_path / "model.keras", compile=False)
    assert loaded.backbone.tie_word_embeddings
    assert "get_config" not in vars(llama)


TOKENS = {
    "token_ids": np.arange(12).reshape(2, 6) % 11,
    "padding_mask": np.ones((2, 6), "int32"),
}
LENGTHS = {"token_ids": (6,), "padding_mask": (6,)}


@pytest.mark.parametrize(
    "copied",
    [
        lambda model: km.dequantize(km.compress(model, km.Quantize("int8")).model),
        lambda model: km.compress(model, km.Prune(0.5)).model,
        lambda model: km.compress(model, km.PruneChannels(0.5)).model,
        lambda model: inspect_dtypes(model).narrow_model(),
        lambda model: km.rematerialize(model, segments=2, input_shape=LENGTHS),
    ],
    ids=["dequantize", "prune", "channels", "narrow", "rematerialize"],
)
@pytest.mark.filterwarnings("ignore:.*was not called as part of model loading")
def test_keras_hub_saves_copies_of_a_tied_llama(copied, tmp_path):
    models = pytest.importorskip("keras_hub").models
    copy = copied(tied_llama())
    copy.save_to_preset(str(tmp_path / "preset"))
    opened = models.CausalLM.from_preset(str(tmp_path / "preset"), preprocessor=None)
    assert opened.backbone.tie_word_embeddings
    assert len(opened.weights) == len(copy.weights)
    np.testing.assert_array_equal(to_numpy(opened(TOKENS)), to_numpy(copy(TOKENS)))
    loaded = km.load_model(tmp_path / "preset")
    loaded.backbone.save_to_preset(str(tmp_path / "again"))
    assert models.Backbone.from_preset(str(tmp_path / "again")).tie_word_embeddings
