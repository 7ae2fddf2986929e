"""Fake quantization of activations: ranges that follow what is seen, in weights."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.aware.places import places
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.static.apply import quantize_static
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy
from tests.compression.aware.nets import (
    JIT,
    X,
    Y,
    aware,
    compiled,
    fit,
    in_order,
    network,
    outputs,
    ranges,
)
from tests.models import L


def still(model, jit=JIT[0]):
    """Compile a model whose weights do not train."""
    return compiled(model, jit, keras.optimizers.SGD(0.0))


def test_a_separable_convolution_with_a_call_of_its_own_keeps_it():
    class Ones(L.SeparableConv2D):
        def call(self, inputs):
            return 0 * super().call(inputs) + 1

    model = keras.Sequential([keras.Input((6, 6, 2)), Ones(3, 3), L.Flatten()])
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(8, 6, 6, 2)).astype("float32")
    trained = aware(model, activations=True)
    history = trained.fit(x, np.ones((8, 48)), verbose=0).history
    assert history["loss"] == pytest.approx([0.0], abs=1e-4)


@pytest.mark.parametrize("layer", ["1d", "2d"])
def test_a_separable_convolution_rounds_what_is_within(layer):
    shape = (8, 3) if layer == "1d" else (8, 8, 3)
    kind = L.SeparableConv1D if layer == "1d" else L.SeparableConv2D
    options = {"strides": 2, "bias_initializer": "normal", "activation": "tanh"}
    own = kind(5, 3, depth_multiplier=2, name="s", **options)
    model = still(in_order(own, L.Flatten(), L.Dense(4), shape=shape))
    x = X[:, 0] if layer == "1d" else X
    plain = to_numpy(own(x))
    within = to_numpy(keras.ops.depthwise_conv(x, own.depthwise_kernel, 2))
    ends = float(within.min()), float(within.max())
    trained = aware(model, "bfloat16", activations=True, decay=0.0)
    trained.fit(x, Y, batch_size=32, verbose=0)
    assert ranges(trained)["s/depthwise"] == pytest.approx(ends, rel=2e-2)
    narrow = {"s/depthwise": (-1e-9, 1e-9)}  # nothing but the bias is left
    rounded = aware(model, "bfloat16", activations=True, ranges=narrow)
    found = to_numpy(rounded.get_layer("s")(x))
    expected = np.broadcast_to(np.tanh(to_numpy(own.bias)), plain.shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(own(x)), plain)


@pytest.mark.parametrize("kind", [L.SeparableConv1D, L.SeparableConv2D])
def test_a_static_model_of_separable_convolutions(kind):
    keras.utils.set_random_seed(0)
    x = X[:, 0] if kind is L.SeparableConv1D else X
    model = in_order(
        kind(5, 3, name="s"),
        L.ReLU(name="relu"),
        L.Flatten(name="flat"),
        L.Dense(4, name="head"),
        shape=x.shape[1:],
    )
    trained = aware(still(model), "int8-static", decay=0.0)
    trained.fit(x, Y, batch_size=32, verbose=0)
    small = km.compress(trained, km.Quantize("int8-static")).model
    assert ranges(trained).keys() == {"picture", "s/depthwise", "relu", "head"}
    assert ranges(small) == ranges(trained) | {"flat": ranges(trained)["relu"]}
    np.testing.assert_allclose(outputs(small, x), outputs(trained, x), atol=1e-5)


def test_no_samples_move_no_range(backend):
    if backend != "tensorflow":
        return  # no other has replicas without samples
    import tensorflow as tf

    model = in_order(L.Flatten(), L.Dense(4, name="head"))
    begin = {"head": (-2.0, 3.0)}
    trained = aware(model, activations=True, decay=0.5, ranges=begin)
    form = tf.TensorSpec((None, *X.shape[1:]))
    step = tf.function(lambda x: trained(x, training=True), input_signature=[form])
    step(X[:0])
    assert ranges(trained) == begin
    step(X[:1])
    assert set(ranges(trained)) > set(begin)


def test_ranges_are_the_moving_average_of_what_the_layers_give():
    model = still(network(), JIT[-1])
    trained = aware(model, activations=True, decay=0.75)
    fit(trained, km.callbacks.FreezeBatchNorm(0))
    first, second = (
        (np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0)))
        for x in (X[:16], X[16:])
    )
    expected = [0.75 * a + 0.25 * b for a, b in zip(first, second, strict=True)]
    found = ranges(trained)
    assert found["picture"] == pytest.approx(expected, rel=1e-6)
    assert found["relu"][0] == 0.0
    assert set(found) == {p.tensor for p in places(km.dequantize(trained)).values()}


def test_ranges_begin_with_those_given_and_go_on():
    begin = {"picture": (-100.0, 50.0)}
    trained = aware(still(network()), activations=True, decay=0.5, ranges=begin)
    assert ranges(trained) == begin
    fit(trained, batch_size=32)
    low = 0.5 * -100 + 0.5 * float(X.min())
    assert ranges(trained)["picture"][0] == pytest.approx(low)
    fit(trained, batch_size=32)
    low = 0.5 * low + 0.5 * float(X.min())
    assert ranges(trained)["picture"][0] == pytest.approx(low)


def test_validation_sees_the_rounding_and_moves_no_range():
    model, frozen = still(network()), km.callbacks.FreezeBatchNorm(0)
    trained = aware(model, "int4")
    history = fit(trained, frozen, validation_data=(X, Y), batch_size=32).history
    assert history["val_loss"][0] == pytest.approx(history["loss"][0], rel=1e-5)
    assert model.evaluate(X, Y, verbose=0) != pytest.approx(history["loss"][0], 1e-3)
    found = []
    for options in ({}, {"validation_data": (100 * X, Y)}):
        trained = aware(model, activations=True)
        fit(trained, frozen, **options)
        found.append(ranges(trained))
    assert found[0] == found[1]


def test_the_forward_pass_rounds_what_it_gives():
    trained = aware(network(), activations=True, decay=0.999)
    found = outputs(trained, X, training=True)
    low, high = min(found.min(), 0), max(found.max(), 0)
    assert np.unique(found).size <= 256
    step = (high - low) / 255
    np.testing.assert_allclose(found / step, np.rint(found / step), atol=1e-2)


def test_masks_go_through():
    inputs = keras.Input((5,), dtype="int32", name="x")
    x = L.Embedding(9, 4, mask_zero=True, name="table")(inputs)
    model = keras.Model(inputs, L.LSTM(3, name="lstm")(x))
    tokens = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 7]])
    trained = aware(model, activations=True)
    trained(tokens, training=True)
    changed = np.where(tokens == 0, tokens, tokens)
    changed[0, 2:] = 0
    one, two = trained(tokens), trained(changed)
    np.testing.assert_array_equal(to_numpy(one), to_numpy(two))
    table = to_numpy(trained.get_layer("table")._embeddings.origin)
    table[0] = 5.0  # of what is masked
    trained.get_layer("table")._embeddings.assign(table)
    found = to_numpy(trained(tokens))
    np.testing.assert_allclose(found[0], to_numpy(one)[0], atol=0.05)
    assert [type(x) for x in trained.layers].count(FakeQuantize) == 2


def test_the_compressed_model_computes_what_the_training_saw():
    model = compiled(network(), optimizer=keras.optimizers.SGD(0.01))
    trained = aware(model, "int8-static")
    fit(trained, epochs=2)
    small = km.compress(trained, km.Quantize("int8-static"), verbose=0).model
    seen = outputs(trained, X)
    # A kernel that has taken up a factor may have another code at a tie.
    np.testing.assert_allclose(outputs(small, X), seen, atol=0.01 * np.abs(seen).max())
    assert (np.abs(outputs(small, X) - seen) < 1e-5).mean() > 0.95


def test_a_folded_product_has_the_range_of_its_normalization():
    alone = L.BatchNormalization(name="after")
    model = keras.Sequential([keras.Input((6, 6, 3)), L.Conv2D(4, 3, name="c"), alone])
    y = np.zeros((32, 4, 4, 4), "float32")
    trained = aware(compiled(model), "int8-static")
    trained.fit(X[:, :6, :6], y, verbose=0)
    assert ranges(trained)["c"] == ranges(trained)["after"]


@pytest.mark.parametrize("name", ["picture", None])
def test_compress_takes_the_ranges_of_the_training(name):
    layers = [L.Conv2D(4, 3, name="conv"), L.BatchNormalization(name="norm"), L.ReLU()]
    top = [L.Flatten(), L.Dense(4, name="head")]
    inputs = keras.Input((8, 8, 3), name=name)
    model = compiled(keras.Sequential([inputs, *layers, *top]))
    trained = aware(model, "int8-static", decay=0.5)
    fit(trained)
    choice = km.Quantize("int8-static")
    small = km.compress(trained, choice).model  # without data
    codes, wanted = ranges(small), ranges(trained)
    plain = km.dequantize(trained)
    names = [plain.inputs[0].name, model.layers[2].name, "head"]
    assert [codes[name] for name in names] == [wanted[name] for name in names]
    expected, _ = quantize_static(plain, choice, None, wanted)
    np.testing.assert_array_equal(outputs(small, X), outputs(expected, X))
    # What is known is not calibrated, what is not is: of the head here.
    trained.get_layer("head_fake_quantize").range.assign([0.0, 0.0])
    with pytest.raises(ConfigError, match="data=None, ranges without 'head'"):
        km.compress(trained, choice)
    again = ranges(km.compress(trained, choice, data=X / 9).model)
    assert again[names[1]] == codes[names[1]]
    assert np.ptp(again["head"]) < 0.5 * np.ptp(codes["head"])


def test_known_ranges_make_a_static_model_without_data():
    model = in_order(L.Dense(2, name="y"), shape=(4,))
    known = {"picture": (-1.0, 1.0), "y": (-2.0, 2.0)}
    choice = km.Quantize("int8-static")
    small = km.compress(km.quantization_aware(model, choice, ranges=known), choice)
    expected, _ = quantize_static(model, choice, None, known)
    x = X[:, 0, 0, :1] * np.ones(4)
    np.testing.assert_array_equal(outputs(small.model, x), outputs(expected, x))


def test_ranges_of_another_model():
    text = "1 of 2 ranges do not belong to a tensor.*Received: ranges of 'rel'"
    with pytest.raises(ModelError, match=text):
        aware(network(), activations=True, ranges={"rel": (0, 1), "relu": (0, 1)})


@pytest.mark.parametrize("name", ["picture", None])
def test_ranges_of_a_calibration_are_of_the_model(name):
    inputs = keras.Input((8, 8, 3), name=name)
    top = L.Dense(4, "tanh", name="d")
    model = still(keras.Sequential([inputs, L.Flatten(), top]))
    name = model.inputs[0].name
    begin = {name: (-9.0, 9.0), "d/linear": (-3.0, 3.0)}
    trained = aware(model, "int8-static", ranges=begin, decay=0.5)
    fit(trained, batch_size=32)
    known = ranges(trained)
    assert known.pop("d/linear")[0] < -1.5
    ((low, _),) = known.values()
    assert low < -4.5


@pytest.mark.filterwarnings("ignore:With 'int8-static'")
def test_a_training_for_static_rounds_what_that_will():
    inputs = keras.Input((7, 4), name="x")
    x = L.Dense(8, name="first")(inputs)
    y = L.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = L.LayerNormalization(name="norm")(x + y)
    x = L.Dense(4, activation="gelu", name="second")(x)
    x = L.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(inputs, L.Dense(2, name="top")(x))
    x = np.random.default_rng(0).normal(size=(32, 7, 4)).astype("float32")
    trained = aware(compiled(model), "int8-static")
    trained.fit(x, np.ones((32, 2)), verbose=0)
    assert ranges(trained).keys() == {"x", "norm", "mean", "top"}
    choice = km.Quantize("int8-static")
    made = km.compress(trained, choice, verbose=0).model  # no range is missing
    # The mean is the sum of what is rounded already, with a range of its own.
    assert ranges(made) == ranges(trained)


@pytest.mark.parametrize(
    ("layers", "exclude", "expected"),
    [
        (
            [
                L.Conv1D(5, 3, activation="gelu", name="gelu"),
                L.MaxPooling1D(name="pool"),
                L.Conv1D(6, 2, name="wide"),
                L.LayerNormalization(name="norm"),
                L.Flatten(name="flat"),
            ],
            (),
            {"x", "pool", "flat", "top"},
        ),
        (
            [
                L.Conv1D(5, 3, name="conv"),
                L.MaxPooling1D(name="pool"),
                L.Conv1D(6, 2, name="wide"),
                L.BatchNormalization(name="norm"),
                L.Flatten(name="flat"),
            ],
            ("conv/.*", "norm/.*"),
            {"pool", "norm", "wide", "top"},
        ),
    ],
    ids=["moves of floats", "excluded"],
)
def test_what_floats_hand_to_integers_has_its_range(layers, exclude, expected):
    inputs = [keras.Input((8, 4), name="x")]
    model = keras.Sequential([*inputs, *layers, L.Dense(2, name="top")])
    x = np.random.default_rng(0).normal(size=(32, 8, 4)).astype("float32")
    choice = km.Quantize("int8-static", exclude=exclude)
    trained = aware(compiled(model), choice)
    trained.fit(x, np.ones((32, 2)), verbose=0)
    assert ranges(trained).keys() == expected
    km.compress(trained, choice, verbose=0)  # takes no data


@pytest.mark.parametrize("learned", [False, True])
def test_what_an_activation_within_a_dense_takes_has_a_range(learned, tmp_path):
    shared = L.Dense(4, activation="tanh", name="twice")
    inputs = keras.Input((8, 8, 3), name="picture")
    x = shared(shared(L.Dense(4, activation="relu", name="first")(L.Flatten()(inputs))))
    outputs_ = L.Dense(4, activation="softmax", name="head")(x)
    model = compiled(keras.Model(inputs, outputs_))
    config = model.get_config()
    trained = aware(model, "int8-static", learned_scales=learned)
    fit(trained)
    assert model.get_config() == config
    assert km.dequantize(trained).get_config() == config
    found = ranges(trained)
    wanted = {"picture", "first", "twice/linear", "twice", "twice:1/linear"}
    assert found.keys() >= wanted | {"head/linear"}
    assert found["twice/linear"] == found["twice:1/linear"]  # one for a shared layer
    trained.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(outputs(again, X), outputs(trained, X))
    small = km.compress(again, km.Quantize("int8-static")).model  # takes no data
    low, high = found["head/linear"]
    assert ranges(small)["head/linear"] == (low, high)
    np.testing.assert_allclose(outputs(small, X), outputs(again, X), atol=1e-5)


def test_training_rounds_what_a_softmax_takes_as_the_compressed_model_does():
    top = L.Dense(4, activation="softmax", name="head")
    inputs = keras.Input((4,), name="x")
    model = keras.Model(inputs, top(inputs))
    x, known = X[:, 0, 0, :1] * np.ones(4), {"x": (-3, 3), "head/linear": (-8.0, 8.0)}
    rounded = outputs(aware(model, "int8-static", ranges=known), x)
    small, _ = quantize_static(model, km.Quantize("int8-static"), None, known)
    np.testing.assert_allclose(rounded, outputs(small, x), atol=1e-5)
    assert np.abs(rounded - outputs(model, x)).max() > 1e-3


def test_a_training_for_static_needs_something_to_round():
    model = keras.Sequential([keras.Input((4,)), L.Embedding(9, 3), L.GRU(2)])
    with pytest.raises(ModelError, match="has nothing to quantize"):
        aware(compiled(model), "int8-static")
