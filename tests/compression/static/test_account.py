"""The account of int8-static: the bytes of the arrays in the model, once each."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.static.apply import quantize_static
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.result import CompressionResult
from kerasmem.compression.technique import Context
from kerasmem.graph.values import nbytes
from tests.compression.static.test_static import net, outputs, pictures
from tests.models import KINDS, chain

L = keras.layers
STATIC = km.Quantize("int8-static")


def separable():
    # Both kernels have 36 entries.
    return chain((8, 8, 4), L.SeparableConv2D(9, 3), L.Flatten(), L.Dense(2))


def shared():
    inputs = keras.Input((6,))
    dense, norm = L.Dense(6, activation="relu"), L.BatchNormalization()
    return keras.Model(inputs, norm(dense(norm(dense(inputs)))))


def scaled():
    layers = [L.Rescaling(1 / 4), L.Normalization(mean=0.5, variance=2.0)]
    return chain((6,), *layers, L.BatchNormalization(), L.Dense(3))


def with_floats():
    return chain(
        (6, 8),
        L.Dense(8, activation="gelu"),
        L.LSTM(5, return_sequences=True, name="lstm"),
        L.LayerNormalization(),
        L.Dense(4, name="head"),
    )


def partly_trained():
    inputs = keras.Input((6,))
    inner = keras.Sequential([keras.Input((6,)), L.Dense(6, name="dense")])
    return keras.Model(inputs, inner(inner(inputs), training=True))


MODELS = {
    "net": (net, (12, 12, 3)),
    "separable": (separable, (8, 8, 4)),
    "shared": (shared, (6,)),
    "scaled": (scaled, (6,)),
    "floats": (with_floats, (6, 8)),
    "partly_trained": (partly_trained, (6,)),
}


@pytest.mark.filterwarnings("ignore:With 'int8-static'")
@pytest.mark.one_backend
@pytest.mark.parametrize("name", MODELS)
def test_the_bytes_are_those_of_the_arrays_in_the_model(name):
    make, shape = MODELS[name]
    model = make()
    made, changes = apply_technique(STATIC, model, Context(pictures(40, shape)))
    told = [change for change in changes if change.technique == "quantize"]
    assert sum(change.after_bytes for change in told) == sum(map(nbytes, made.weights))
    own = [change.weight for change in told if change.before_bytes]
    assert len(own) == len(set(own))


@pytest.mark.one_backend
def test_each_kernel_of_a_separable_convolution_has_its_own_bytes():
    _, changes = apply_technique(STATIC, separable(), Context(pictures(40, (8, 8, 4))))
    told = {c.weight.partition("/")[2]: c for c in changes if "sep" in c.layer}
    assert told["depthwise_kernel"].after_bytes == 36 + 4 * 4
    assert told["pointwise_kernel"].after_bytes == 36 + 9 * 4
    assert told["bias"].after_bytes == 9 * 4


@pytest.mark.filterwarnings("ignore:With 'int8-static'")
def test_a_layer_that_stays_float_has_its_weights_in_int8_and_says_why(tmp_path):
    model, x = with_floats(), pictures(40, (6, 8))
    made, changes = apply_technique(STATIC, model, Context(x))
    told = {c.weight: c for c in changes}
    kernel = told["lstm/lstm_cell/kernel"]
    assert kernel.changed
    assert kernel.after_bytes == 8 * 20 + 4 * 20
    assert kernel.detail == (
        "int8 with 20 scales, computed with floats: LSTM has no int8 support"
    )
    exact = outputs(model, x)
    assert np.abs(outputs(made, x) - exact).max() < 0.05 * np.abs(exact).max()
    CompressionResult(made, None, ()).save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(outputs(again, x), outputs(made, x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:With 'int8-static'")
@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["attention", "recurrent", "grouped_attention"])
def test_it_is_as_large_as_with_int8_weights_alone(name):
    kind = KINDS[name]
    wide = chain(
        (*kind.shape,),
        *([] if kind.integers else [L.Dense(kind.shape[-1])]),
        kind.make(),
        L.Dense(3),
        dtype="int32" if kind.integers else "float32",
    )
    x = np.tile(kind.inputs(), (14, *(1 for _ in kind.shape)))
    sizes = [
        sum(
            map(
                nbytes,
                apply_technique(km.Quantize(scheme), clone, Context(x))[0].weights,
            )
        )
        for scheme, clone in (
            ("int8", keras.models.clone_model(wide)),
            ("int8-static", wide),
        )
    ]
    assert sizes[1] == sizes[0]


@pytest.mark.one_backend
def test_what_is_excluded_is_not_touched_at_all():
    model, x = with_floats(), pictures(40, (6, 8))
    made, changes = apply_technique(
        km.Quantize("int8-static", exclude="lstm"), model, Context(x)
    )
    lstm = [c for c in changes if c.layer == "lstm"]
    assert [c.detail for c in lstm] == ["stays float: is excluded"] * 3
    assert type(made.get_layer("lstm")) is L.LSTM


@pytest.mark.one_backend
def test_given_ranges_have_the_same_account():
    model = chain((4,), L.Dense(3, name="dense"), L.Dense(2, name="top"))
    ranges = {model.inputs[0].name: (-1.0, 1.0), "dense": (-2.0, 2.0)}
    choice = km.Quantize("int8-static", exclude="top")
    made, changes = quantize_static(model, choice, None, ranges)
    assert sum(c.after_bytes for c in changes) == sum(map(nbytes, made.weights))
    details = {c.weight: c.detail for c in changes}
    assert details["top/kernel"] == "stays float: is excluded"
