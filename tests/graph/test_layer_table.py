"""The layer table: all of Keras's layers are in it, and one call adds one more."""

import importlib
import inspect
from functools import partial

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.static.kinds import KINDS as FORMS
from kerasmem.errors import ConfigError
from kerasmem.graph import layer_table
from kerasmem.graph.channels.walk import FAMILIES
from kerasmem.graph.layer_table import LAYERS, entry_of, kind, register_layer
from kerasmem.memory.compress_activations.plan import Role, role_of
from tests.models import L, chain

EVERY = sorted(
    {
        cls
        for cls in vars(keras.layers).values()
        if inspect.isclass(cls) and issubclass(cls, keras.Operation)
    },
    key=lambda cls: cls.__name__,
)


@keras.saving.register_keras_serializable("tests")
class Affine(keras.layers.Layer):
    """A layer of somebody's own that computes as a Dense without activation does."""

    activation = None
    use_bias = True

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(
            name="kernel", shape=(shape[-1], self.units), initializer="glorot_uniform"
        )
        self.bias = self.add_weight(name="bias", shape=(self.units,))

    def call(self, x):
        return keras.ops.matmul(x, self.kernel) + self.bias

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@pytest.fixture
def registered():
    entry = register_layer(Affine, like=L.Dense)
    yield entry
    del layer_table._REGISTERED[Affine]


def model_of(layer):
    keras.utils.set_random_seed(3)
    x = keras.Input((6,))
    hidden = L.ReLU()(layer(8, name="first")(x))
    model = keras.Model(x, L.Dense(3)(layer(4, name="second")(hidden)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def samples(count=64):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, 6)).astype("float32")
    return x, draw.integers(0, 3, count)


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
@pytest.mark.one_backend
def test_every_layer_of_keras_has_a_row_that_says_how_channels_move_or_why_not(cls):
    entry = LAYERS.get(f"layers.{cls.__name__}")
    assert entry is not None, f"Add a row for {cls.__name__} to graph/layer_table.py."
    assert (entry.channels is None) == (entry.reason is not None)
    assert entry.channels is None or entry.channels in FAMILIES


@pytest.mark.one_backend
def test_every_row_is_of_a_class_of_keras():
    modules = [
        importlib.import_module(f"keras.src.ops.{name}")
        for name in ("numpy", "nn", "core", "math")
    ]
    known = {cls.__name__ for cls in EVERY} | {
        name
        for module in modules
        for name, v in vars(module).items()
        if inspect.isclass(v)
    }
    rows = [entry for name, entry in LAYERS.items() if "applications" not in name]
    assert [e.name for e in rows if e.class_name not in known] == []


@pytest.mark.one_backend
def test_words_of_the_columns_are_known_where_they_are_read():
    rows = LAYERS.values()
    assert {e.channels for e in rows} - {None} == {*FAMILIES}
    assert {e.integer for e in rows} - {None, "activation"} == {*FORMS}
    assert {e.residuals.upper() for e in rows} <= {*Role.__members__}


@pytest.mark.one_backend
def test_a_subclass_is_not_known_but_inherits_how_its_kernel_lies():
    class Mine(L.Conv2DTranspose):
        pass

    layer = Mine(2, 3)
    assert kind(layer) is None
    assert entry_of(layer).kernel is None
    assert entry_of(layer, subclasses=True).kernel == "transposed"
    assert role_of(layer) is Role.KERNEL


def test_a_layer_that_one_call_registers_is_pruned_quantized_and_estimated(registered):
    model, (x, y) = model_of(Affine), samples()
    assert registered.kernel == "dense"
    pruned = km.compress(model, km.PruneChannels(0.5), data=(x, y))
    assert pruned.model.get_layer("first").units == 4
    assert pruned.model.get_layer("second").units == 2
    assert keras.ops.shape(pruned.model(x)) == (64, 3)

    quantized = km.compress(model, km.Quantize("int8-static"), data=x)
    details = [change.detail for change in quantized.changes]
    assert sum(detail.endswith(", int8 inputs") for detail in details) == 3
    np.testing.assert_allclose(quantized.model.predict(x), model.predict(x), atol=0.2)
    dynamic = km.compress(model, km.Quantize("int8"))
    np.testing.assert_allclose(dynamic.model.predict(x), model.predict(x), atol=0.05)


def test_a_layer_that_one_call_registers_is_estimated_and_rematerialized(registered):
    del registered
    model, x, y = model_of(Affine), *samples()
    estimates = [
        km.estimate_memory(one, 64, method="analytic")
        for one in (model, model_of(L.Dense))
    ]
    assert estimates[0].peak_bytes == estimates[1].peak_bytes
    again = km.rematerialize(model, segments=2)
    before = model.evaluate(x, y, verbose=0)
    again.fit(x, y, epochs=1, verbose=0)
    assert again.evaluate(x, y, verbose=0) < before


@pytest.mark.parametrize("layer", [partial(L.AdaptiveAveragePooling2D, 3)])
def test_a_layer_of_keras_is_pruned_quantized_estimated_and_rematerialized(layer):
    keras.utils.set_random_seed(3)
    layers = L.Conv2D(8, 3, name="first"), layer(name="second")
    model = chain((7, 7, 2), *layers, L.Conv2D(4, 2), L.Flatten(), L.Dense(3))
    x = np.random.default_rng(0).normal(size=(64, 7, 7, 2)).astype("float32")
    pruned = km.compress(model, km.PruneChannels(0.5)).model
    assert pruned.get_layer("first").filters == 4
    assert pruned.get_layer("second").output.shape[-1] == 4

    integer = km.compress(model, km.Quantize("int8-static"), data=x).model
    np.testing.assert_allclose(
        integer.predict(x, verbose=0), model.predict(x, verbose=0), atol=0.1
    )
    estimate = km.estimate_memory(model, 64, optimizer="sgd", method="analytic")
    assert "second" in {part.layer for part in estimate.parts}
    again = km.rematerialize(model, segments=2)
    np.testing.assert_allclose(again.predict(x), model.predict(x), atol=1e-6)


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:With 'int8-static', 13% of the multiplications")
def test_without_registration_nothing_is_known_of_such_a_layer():
    x, _ = samples()
    kept = km.compress(model_of(Affine), km.Quantize("int8-static"), data=x).changes
    assert sum(change.detail.endswith(", int8 inputs") for change in kept) == 1


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("cls", "like", "columns", "match"),
    [
        (Affine, L.Dense, {"colour": "red"}, "Invalid layer class or columns.*colour"),
        (int, None, {}, "Received: cls=.*int"),
        (Affine, Affine, {}, "to be a class in the layer table.*Affine"),
    ],
)
def test_what_cannot_be_registered_is_told(cls, like, columns, match):
    with pytest.raises(ConfigError, match=match):
        register_layer(cls, like, **columns)
