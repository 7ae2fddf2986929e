"""What is excluded is the layer that was meant, also where names repeat."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.technique import Context
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import sublayers, weights
from tests.compression.static.test_static import outputs, pictures
from tests.models import L, chain, in_place


def inner(name, units=6):
    x = keras.Input((6,))
    return keras.Model(x, L.Dense(units, name="dense")(x), name=name)


def twins():
    """Two functional models with a layer of one name, for which Keras has one path."""
    return chain((6,), inner("left"), L.ReLU(), inner("right"), L.Dense(2, name="top"))


@pytest.mark.one_backend
def test_the_path_of_a_weight_has_the_models_around_it():
    paths = [weight.path for weight in weights(twins())]
    assert paths[:4] == [
        f"{model}/dense/{name}"
        for model in ("left", "right")
        for name in ("kernel", "bias")
    ]
    within = keras.Sequential([keras.Input((6,)), inner("deep")], name="outer")
    model = chain((6,), within, inner("flat"))
    assert [w.path.rpartition("/")[0] for w in weights(model)][::2] == [
        "outer/deep/dense",
        "flat/dense",
    ]
    again = [w.path for w in weights(clone(model))]
    assert again == [w.path for w in weights(model)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_one_of_two_layers_of_one_name_is_excluded(side):
    model, x = twins(), pictures(40, (6,))
    choice = km.Quantize("int8-static", exclude=f"{side}/", bias_correction=True)
    made, changes = apply_technique(choice, model, Context(x))
    told = {c.weight: c.changed for c in changes}
    other = {"left": "right", "right": "left"}[side]
    assert not told[f"{side}/dense/kernel"]
    assert told[f"{other}/dense/kernel"]
    floats = [layer for layer in sublayers(made) if type(layer) is L.Dense]
    kernel = model.get_layer(side).get_layer("dense").kernel
    np.testing.assert_array_equal(
        *map(keras.ops.convert_to_numpy, (floats[0].kernel, kernel))
    )
    assert len(floats) == 1
    assert np.abs(outputs(made, x) - outputs(model, x)).max() < 0.2


@pytest.mark.one_backend
def test_weight_only_schemes_tell_them_apart_too():
    model = twins()
    changes = in_place(km.Quantize("int8", exclude="left/"), model)
    kernels = {c.weight: c.changed for c in changes if c.weight.endswith("kernel")}
    assert kernels == {
        "left/dense/kernel": False,
        "right/dense/kernel": True,
        "top/kernel": True,
    }


@pytest.mark.one_backend
def test_a_budget_is_shared_by_layers_of_one_name():
    model, x = twins(), pictures(64, (6,))
    left, right = (model.get_layer(n).get_layer("dense") for n in ("left", "right"))
    kernel = np.random.default_rng(0).normal(size=(6, 6))
    kernel[0] *= 40  # for int4 all others are zero
    codes = np.random.default_rng(1).integers(-7, 8, (6, 6))
    codes[0] = 7
    left.kernel.assign(kernel)
    right.kernel.assign(codes)  # int4 loses nothing, int3 much
    # 168 bytes have no room for float16 on the left.
    changes = in_place(km.Quantize("mixed", budget=km.Budget(168)), model, x)
    told = {c.weight: c.detail.split()[0] for c in changes if c.changed}
    found = [
        quantized_variables(layer)[0].coding.dtype
        for layer in (left, right, model.get_layer("top"))
    ]
    assert found == list(told.values())
    assert (told["left/dense/kernel"], told["right/dense/kernel"]) == ("int8", "int4")


@pytest.mark.parametrize("correct", [True, False])
def test_a_normalization_that_is_folded_away_may_be_excluded(correct):
    layers = [L.Conv2D(4, 3, name="conv"), L.BatchNormalization(), L.ReLU()]
    model, x = (
        chain((6, 6, 2), *layers, L.Flatten(), L.Dense(2)),
        pictures(40, (6, 6, 2)),
    )
    choice = km.Quantize(
        "int8-static", exclude="BatchNormalization", bias_correction=correct
    )
    made, changes = apply_technique(choice, model, Context(x))
    assert any("folded into 'conv'" in change.detail for change in changes)
    assert sum(isinstance(layer, FakeQuantize) for layer in sublayers(made)) == 3
    exact = outputs(model, x)
    assert np.abs(outputs(made, x) - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.one_backend
def test_a_normalization_that_stays_is_left_float_if_it_is_excluded():
    inputs = keras.Input((6, 6, 2))
    x = L.Conv2D(4, 3, name="conv")(inputs)
    x = L.BatchNormalization(name="norm")(L.Add()([x, L.ReLU()(x)]))
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(x)))
    choice = km.Quantize("int8-static", exclude="norm", bias_correction=True)
    made, changes = apply_technique(choice, model, Context(pictures(40, (6, 6, 2))))
    assert type(made.get_layer("norm")) is L.BatchNormalization
    gamma = next(c for c in changes if c.weight == "norm/gamma")
    assert gamma.detail == "stays float: is excluded"


@keras.saving.register_keras_serializable("tests")
class Unnamed(L.Layer):
    """A layer whose inner one has a name that Keras counts up."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = L.Dense(6)

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


@pytest.mark.one_backend
def test_what_is_excluded_stays_float_under_whatever_name_its_copy_has():
    model = chain((6,), L.Dense(6, name="first"), Unnamed(name="block"), L.Dense(2))
    made, changes = apply_technique(
        km.Quantize("int8-static", exclude="Unnamed"),
        model,
        Context(pictures(40, (6,))),
    )
    assert [type(w) for w in made.get_layer("block").weights] == [keras.Variable] * 2
    assert not quantized_variables(made.get_layer("block"))
    told = [c for c in changes if c.layer.startswith("dense") and "excl" in c.detail]
    assert not any(change.changed for change in told)


@pytest.mark.one_backend
def test_a_layer_is_excluded_by_any_of_its_weights():
    layers = [L.Conv2D(4, 3, name="conv"), L.Flatten(), L.Dense(2, name="top")]
    model = chain((6, 6, 2), *layers)
    made, _ = apply_technique(
        km.Quantize("int8-static", exclude="conv/bias"),
        model,
        Context(pictures(40, (6, 6, 2))),
    )
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(made.get_layer("conv").kernel),
        keras.ops.convert_to_numpy(model.get_layer("conv").kernel),
    )
