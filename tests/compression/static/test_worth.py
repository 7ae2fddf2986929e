"""Tensors are rounded where kernels read them; all else stays as it was."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.static.apply import quantize_static
from tests.compression.static.test_static import (
    is_on_grid,
    layers_of,
    outputs,
    pictures,
    ranges,
    rounded,
    static,
)
from tests.models import L, chain


def told(result):
    return {change.weight: change.detail for change in result.changes}


def unlike(count=200):
    """A feature of 10,000 give or take 1, and two small ones."""
    random = np.random.default_rng(0)
    mean, deviation = np.array([1e4, 0.0, 5.0]), np.array([1.0, 0.01, 2.0])
    x = (mean + deviation * random.normal(size=(count, 3))).astype("float32")
    return x, mean, deviation


def normalized(*before):
    x, mean, deviation = unlike()
    scale = L.Normalization(mean=mean, variance=deviation**2, name="scale")
    return chain((3,), *before, scale, L.Dense(8, activation="relu"), L.Dense(2)), x


@pytest.mark.parametrize("before", [[], [L.Reshape((3,), name="before")]])
def test_features_of_unlike_sizes_are_normalized_as_floats(before):
    model, x = normalized(*before)
    result = static(model, x)
    kinds = layers_of(result.model)
    assert kinds["scale"] == "Normalization"
    assert rounded(result.model)[0] == "scale"  # neither the input nor "before"
    assert told(result)["scale"] == (
        "stays float: has inputs that are too different for one scale"
    )
    if before:
        assert (
            told(result)["before"]
            == "stays float: only precedes layers that stay float"
        )
    exact = outputs(model, x)
    assert np.abs(outputs(result.model, x) - exact).max() < 0.03 * np.abs(exact).max()


@pytest.mark.one_backend
def test_pictures_are_still_normalized_with_codes():
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (40, 6, 6, 3)).astype("float32")
    layers = [
        L.Rescaling(1 / 255, name="bytes"),
        L.Normalization(
            mean=[0.485, 0.456, 0.406],
            variance=[0.229**2, 0.224**2, 0.225**2],
            name="scale",
        ),
    ]
    model = chain((6, 6, 3), *layers, L.Conv2D(4, 3), L.Flatten(), L.Dense(2))
    names = rounded(static(model, x).model)
    assert names[1:3] == ["bytes", "scale"]


@pytest.mark.one_backend
def test_inputs_are_not_rounded_for_layers_that_stay_float():
    inputs = keras.Input((4, 3))
    flat = L.Flatten(name="flat")(L.ReLU(name="cut")(inputs))
    rows = L.LayerNormalization(name="rows")(flat)
    model = keras.Model(inputs, L.Dense(3, name="top")(rows))
    x = pictures(40, (4, 3))
    result = static(model, x)
    kinds = layers_of(result.model)
    assert (kinds["flat"], kinds["cut"]) == ("Flatten", "ReLU")
    assert rounded(result.model) == ["rows", "top"]


@pytest.mark.one_backend
def test_a_normalization_behind_floats_is_not_given_codes():
    layers = [L.Dense(6, name="first"), L.LayerNormalization(), L.ReLU()]
    model = chain((6,), *layers, L.BatchNormalization(name="norm"), L.Softmax())
    result = static(model, pictures(40, (6,)))
    assert "norm" not in ranges(result.model)
    gamma = told(result)["norm/gamma"]
    assert gamma == "stays float: follows layers that stay float"


@pytest.mark.parametrize("shape", [(3, 1, 1), (3,), (1, 3), (1, 1, 1, 3)])
def test_a_scale_broadcasts_as_in_numpy(shape):
    scale = np.array([0.01, 1.0, 3.0]).reshape(shape).tolist()
    rescaling = L.Rescaling(scale, name="scale")
    model = chain((3, 3, 3), L.Conv2D(3, 1), rescaling, L.Flatten(), L.Dense(2))
    x = pictures(40, (3, 3, 3))
    result = static(model, x)
    last = shape[-1] == 3
    assert ("scale" in ranges(result.model)) == last
    if not last:
        assert told(result)["scale"] == (
            "stays float: does not have one finite factor per entry of the last axis"
        )
    exact = outputs(model, x)
    assert np.abs(outputs(result.model, x) - exact).max() < 0.05 * np.abs(exact).max()


def test_what_is_flattened_with_channels_first_stays_float():
    flat = L.Flatten(data_format="channels_first", name="flat")
    model, x = (
        chain((4, 4, 3), L.Conv2D(3, 1), flat, L.Dense(2)),
        pictures(40, (4, 4, 3)),
    )
    result = static(model, x)
    assert told(result)["flat"] == "stays float: uses channels_first"
    exact = outputs(model, x)
    assert np.abs(outputs(result.model, x) - exact).max() < 0.05 * np.abs(exact).max()


def test_rows_with_channels_first_are_flattened_rounded():
    flat = L.Flatten(data_format="channels_first", name="flat")
    model, x = chain((4,), L.Dense(3), flat, L.Dense(2)), pictures(40, (4,))
    assert "flat" in ranges(static(model, x).model)


@pytest.mark.parametrize(
    "layer", [L.Flatten(name="move"), L.Reshape((-1, 2, 2), name="move")]
)
def test_what_has_an_open_size_stays_float_where_it_is_reshaped(layer):
    inputs = keras.Input((None, 4))
    rows = L.Dense(4, activation="relu", name="first")(inputs)
    model = keras.Model(inputs, layer(rows))
    x = pictures(40, (6, 4))
    result = static(model, x)
    assert told(result)["move"] == "stays float: has outputs of unknown size"
    exact = outputs(model, x)
    assert np.abs(outputs(result.model, x) - exact).max() < 0.05 * np.abs(exact).max()
    longer = pictures(2, (9, 4))
    assert outputs(result.model, longer).shape == outputs(model, longer).shape


@pytest.mark.one_backend
def test_layers_that_stay_float_stay_whole():
    inputs = keras.Input((8, 8, 4))
    activation = L.Activation("silu", name="silu")
    x = L.LayerNormalization(name="norm")(inputs)
    x = activation(x)
    x = L.Conv2D(4, 3, activation="gelu", name="left")(x)
    x = L.SeparableConv2D(4, 3, activation="silu", name="apart")(x)
    x = L.Flatten()(activation(x))
    model = keras.Model(inputs, L.Dense(2, activation="tanh", name="top")(x))
    x = pictures(40, (8, 8, 4))
    result = static(model, x, exclude=["left", "apart"])
    kinds = layers_of(result.model)
    assert kinds["left"] == "Conv2D"
    assert kinds["apart"] == "SeparableConv2D"
    assert kinds["silu"] == "Activation"
    assert [n for n in ranges(result.model) if n.endswith("linear")] == ["top/linear"]
    assert told(result)["apart/depthwise_kernel"] == "stays float: is excluded"


@pytest.mark.one_backend
def test_what_is_called_in_training_mode_is_not_taken_apart():
    inputs = keras.Input((6,))
    inner = keras.Sequential([keras.Input((6,)), L.Dense(6, "gelu", name="dense")])
    x = L.Dense(6, name="first")(inputs)
    model = keras.Model(inputs, inner(x, training=True))
    result = static(model, pictures(40, (6,)))
    assert "QuantizedDense" in layers_of(result.model).values()
    detail = "int8 with 6 scales, computed with floats: is called with training=True"
    assert detail in told(result).values()


@pytest.mark.one_backend
def test_ranges_of_what_stays_float_need_not_be_given():
    layers = [L.Dense(3, activation="gelu", name="dense"), L.Dense(2, name="top")]
    model = chain((4,), *layers)
    name = model.inputs[0].name
    known = {"dense": (-2.0, 2.0), "top": (-2.0, 2.0)}
    choice = km.Quantize("int8-static", exclude="dense")
    made, _ = quantize_static(model, choice, None, {name: (-1.0, 1.0), **known})
    assert ranges(made) == known


@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
def test_what_only_floats_go_on_with_is_not_rounded(activation, tmp_path):
    model = chain(
        (6,),
        L.Dense(8, activation=activation, name="first"),
        L.LayerNormalization(name="norm"),
        L.Dense(2, name="top"),
    )
    x = 3 * pictures(64, (6,))
    result = static(model, x)
    assert rounded(result.model) == [model.inputs[0].name, "norm", "top"]
    first = keras.Model(result.model.inputs[0], result.model.get_layer("first").output)
    assert not is_on_grid(outputs(first, x), ranges(result.model)["top"])
    path = tmp_path / "m.keras"
    result.save(path)
    again = keras.models.load_model(path)
    np.testing.assert_allclose(outputs(again, x), outputs(result.model, x), atol=1e-6)


@pytest.mark.one_backend
def test_sums_that_only_floats_go_on_with_are_not_rounded():
    inputs = keras.Input((6,), name="x")
    x = L.Dense(8, name="stem")(inputs)
    for block in range(3):
        normed = L.LayerNormalization(name=f"norm{block}")(x)
        x = x + L.Dense(8, name=f"dense{block}")(normed)
    x = L.Dense(2, name="top")(L.LayerNormalization(name="norm")(x))
    model, x = keras.Model(inputs, x), pictures(64, (6,))
    names = set(ranges(static(model, x).model))
    assert names == {"x", "norm0", "norm1", "norm2", "norm", "top"}


@pytest.mark.one_backend
def test_an_activation_that_was_a_part_of_a_layer_stays_with_it():
    dense = L.Dense(8, activation="tanh", name="first")
    model = chain((6,), dense, L.LayerNormalization(name="norm"), L.Dense(2))
    found = ranges(static(model, pictures(64, (6,))).model)
    assert found["first"] == (-1.0, 127 / 128)
    assert "first/linear" in found


@pytest.mark.one_backend
def test_what_the_last_layer_takes_is_rounded():
    model = chain((6,), L.Dense(4, name="top"), L.Softmax(name="end"))
    found = ranges(static(model, pictures(64, (6,))).model)
    assert "top" in found
    assert "end" not in found


@pytest.mark.one_backend
def test_an_activation_of_its_own_is_computed_with_floats_before_floats():
    model = chain(
        (6,),
        L.Dense(8, name="first"),
        L.Activation("silu", name="silu"),
        L.LayerNormalization(name="norm"),
        L.Dense(2, name="top"),
    )
    found = ranges(static(model, pictures(64, (6,))).model)
    assert not {"first", "silu"} & set(found)


def test_silu_as_an_operation_takes_what_a_layer_of_half_precision_gives():
    layers = [L.Dense(6, dtype="mixed_float16"), keras.ops.silu, L.Dense(2)]
    model, x = chain((6,), *layers), pictures(40, (6,))
    found, exact = outputs(static(model, x).model, x), outputs(model, x)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()
