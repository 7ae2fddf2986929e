"""Every scheme in every kind of layer: what it stores, computes, saves and refuses."""

import inspect
from dataclasses import replace

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.measure import measure
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.compression.recipe import from_json
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.activations import layer_activations
from kerasmem.graph.clone import clone, part_from
from kerasmem.graph.kernels import is_kernel, reduced_axes
from kerasmem.graph.layers import weights
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain, from_origin, in_place

LAYOUTS = (
    *("dense", "einsum_dense", "conv1d", "depthwise_2d", "recurrent", "tied_embedding"),
    *("time_distributed", "grouped_attention", "spectral_normalization", "subclassed"),
)


def outputs(model, inputs):
    return to_numpy(keras.ops.cast(model(inputs, training=False), "float32"))


def reloaded(model, folder):
    km.save_model(model, folder / "m.keras")
    return keras.models.load_model(folder / "m.keras")


def in_groups(kernel, axes, size):
    """An independent affine int4, group by group."""
    kept = [axis for axis in range(kernel.ndim) if axis not in axes]
    channels = kernel.transpose(*kept, *axes).reshape(
        -1, *[kernel.shape[a] for a in axes]
    )
    result = np.empty_like(channels)
    for channel, new in zip(channels, result, strict=True):
        flat, length = channel.ravel(), channel.size
        step = -(-length // -(-length // size))
        parts = [flat[i : i + step] for i in range(0, length, step)]
        new[:] = np.concatenate([affine(part) for part in parts]).reshape(new.shape)
    back = [kernel.shape[a] for a in (*kept, *axes)]
    return result.reshape(back).transpose(np.argsort([*kept, *axes]))


def affine(values):
    low, high = min(0, values.min()), max(0, values.max())
    scale = np.float32((np.float64(high) - low) / 15) or np.float32(1)
    zero = np.clip(np.rint(-8 - low / np.float64(scale)), -8, 7)
    codes = np.clip(np.rint(values / np.float64(scale)) + zero, -8, 7)
    return (codes - zero).astype("float32") * scale


@pytest.mark.parametrize(("words", "dtype"), [(8, "int8"), (10, "int4")])
def test_only_small_tables_are_int8_by_default(words, dtype):
    table = L.Embedding(words, 16)
    model = chain((3,), table, L.Flatten(), L.Dense(100), L.Dense(16))
    assert model.count_params() == 16 * words + 48 * 100 + 100 + 100 * 16 + 16
    in_place(Quantize("int4"), model)
    found = [each.coding.dtype for each in quantized_variables(model)]
    assert found == [dtype, "int4", "int4"]
    grouped = chain(
        (3,), L.Embedding(words, 16), L.Flatten(), L.Dense(100), L.Dense(16)
    )
    in_place(Quantize("int4", group_size=16), grouped)
    assert {each.coding.dtype for each in quantized_variables(grouped)} == {"int4"}


@pytest.mark.parametrize("name", LAYOUTS)
def test_int4_in_groups_computes_what_rounded_weights_compute_and_reloads(
    name, tmp_path, origin
):
    kind = KINDS[name]
    model, inputs = kind.make(), kind.inputs()
    small, reference = from_origin(clone(model), origin), clone(model)
    for weight in weights(reference):
        if is_kernel(weight):
            kernel = to_numpy(weight.variable)
            groups = in_groups(kernel, reduced_axes(weight), 4)
            weight.variable.assign(groups)
    changes = in_place(
        Quantize("int4", granularity="group", group_size=4, symmetric=False), small
    )
    assert sum(change.changed for change in changes) == kind.kernels
    found, expected = outputs(small, inputs), outputs(reference, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    again = reloaded(small, tmp_path)
    np.testing.assert_array_equal(outputs(again, inputs), found)
    assert len(quantized_variables(again)) == kind.kernels
    assert measure(small).parameters == measure(model).parameters


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("conv2d", "float16"), ("recurrent", "bfloat16")),
        *(("attention", "bfloat16"), ("subclassed", "float16")),
    ],
)
def test_sixteen_bits_are_what_is_left_of_a_weight(name, dtype, tmp_path):
    kind = KINDS[name]
    model, inputs = kind.make(), kind.inputs()
    small, reference = clone(model), clone(model)
    for weight in weights(reference):
        if is_kernel(weight):
            halved = to_numpy(weight.variable).astype(np.dtype(dtype))
            weight.variable.assign(halved.astype("float32"))
    in_place(Quantize(dtype), small)
    found = outputs(small, inputs)
    np.testing.assert_allclose(found, outputs(reference, inputs), rtol=1e-5, atol=1e-6)
    again = reloaded(small, tmp_path)
    np.testing.assert_array_equal(outputs(again, inputs), found)
    assert {v.coding.dtype for v in quantized_variables(again)} == {dtype}
    before, after = measure(model), measure(small)
    kernels = sum(w.size for w in weights(model) if is_kernel(w))
    assert before.weight_bytes - after.weight_bytes == 2 * kernels
    assert (before.parameters, before.nonzero) == (after.parameters, after.nonzero)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scheme", ["int8", "int4", "int3"])
def test_what_shares_a_scale_and_how_many_bytes_it_takes(
    scheme, symmetric, granularity, tmp_path
):
    model = chain((5,), L.Embedding(9, 6), L.Conv1D(7, 3), dtype="int32")
    inputs = np.array([[0, 8, 3, 3, 1]], "int32")
    before = outputs(model, inputs)
    changes = in_place(
        Quantize(scheme, granularity=granularity, symmetric=symmetric), model
    )
    table, kernel = [change for change in changes if change.changed]
    scales = {"channel": (9, 7), "tensor": (1, 1)}[granularity]
    each = 4 if symmetric else 5
    row, column = {"int8": (6, 18), "int4": (3, 9), "int3": (3, 9)}[scheme]
    assert table.after_bytes == 9 * row + each * scales[0]
    assert kernel.after_bytes == 7 * column + each * scales[1]
    found = outputs(model, inputs)
    most = {"int8": 0.02, "int4": 0.3, "int3": 0.8}[scheme]
    assert np.abs(found - before).max() < most
    np.testing.assert_array_equal(outputs(reloaded(model, tmp_path), inputs), found)


PAIRS = [
    *(("mixed_bfloat16", "int4"), ("mixed_float16", "bfloat16")),
    *(("mixed_bfloat16", "int8-dynamic"), ("float16", "int8-dynamic")),
    *(("float16", "bfloat16"), ("mixed_float16", "int4")),
]


@pytest.mark.parametrize(("policy", "scheme"), PAIRS)
def test_the_compute_dtype_of_a_layer_is_kept(policy, scheme, tmp_path):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, L.Dense(4, dtype=policy)(inputs))
    x = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")
    expected = model(x)
    in_place(Quantize(scheme), model)
    found = model(x)
    assert found.dtype == expected.dtype
    limit = 0.5 if scheme == "int4" else 0.1
    assert (
        np.abs(outputs(model, x) - to_numpy(keras.ops.cast(expected, "float32"))).max()
        < limit
    )
    again = reloaded(model, tmp_path)(x)
    assert keras.ops.all(again == found)


def int8_by_hand(x, axes):
    scale = np.abs(x).max(axis=axes, keepdims=True).astype("float32") / np.float32(127)
    return np.rint(x / scale).astype("int32"), scale


def inputs_by_hand(x, axes):
    """Codes less their zero points, and scales, in the order of XNNPACK."""
    low = np.minimum(x.min(axis=axes, keepdims=True), 0)
    high = np.maximum(x.max(axis=axes, keepdims=True), 0)
    factor = np.float32(255) / (high - low)
    zeros = np.clip(np.rint(-128 - low * factor), -128, 127)
    codes = np.clip(np.rint(x * factor), -128 - zeros, 127 - zeros)
    return codes.astype("int32"), 1 / factor


SIDES = {"both": (-9, 9), "positive": (0, 9), "negative": (-9, 0)}


def one_sided(side, shape):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    return np.clip(x, *SIDES[side])


@pytest.mark.parametrize("side", SIDES)
def test_a_dynamic_dense_multiplies_integers_exactly(side, tmp_path):
    model = chain((40,), L.Dense(30, activation="relu"))
    x = one_sided(side, (17, 40))
    kernel, bias = model.layers[-1].get_weights()
    codes, scales = int8_by_hand(kernel, 0)
    inputs, each = inputs_by_hand(x, 1)
    expected = np.maximum((inputs @ codes) * (each * scales) + bias, 0)
    changes = in_place(Quantize("int8-dynamic"), model)
    assert changes[0].detail == "int8 with 30 scales, int8 inputs"
    np.testing.assert_allclose(outputs(model, x), expected, rtol=1e-6, atol=1e-6)
    again = reloaded(model, tmp_path)
    np.testing.assert_array_equal(outputs(again, x), outputs(model, x))


ROWS = {
    "several axes in, one out": (L.EinsumDense, ("abcd,cde->abe", (None, 6)), (2, 3)),
    "one axis in, several out": (L.EinsumDense, ("...d,def->...ef", (3, 5, 2, 6)), 3),
    "a kernel for each group": (L.EinsumDense, ("abcd,cde->abce", (None, 4, 6)), 3),
    "axes that the kernel lacks": (L.EinsumDense, ("abcd,de->ae", (6,)), (1, 2, 3)),
    "convolution": (L.Conv2D, (6, 3, 2, "same"), (1, 2, 3)),
}


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("name", ROWS)
def test_dynamic_inputs_have_a_scale_and_a_zero_point_per_row(name, blocks):
    cls, arguments, axes = ROWS[name]
    model = chain((5, 4, 8), cls(*arguments))
    x = one_sided("positive", (3, 5, 4, 8))
    x[1], x[2, 0] = x[1] * 100, -x[2, 0]
    in_place(Quantize("int8-dynamic"), model)
    (kernel,) = quantized_variables(model)
    kernel.block_count = blocks  # as of a kernel of many bytes
    codes, scales = inputs_by_hand(x, axes)
    expected = outputs(km.dequantize(model), codes * scales)
    found = outputs(model, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)
    plain = outputs(km.dequantize(model), x)
    assert np.abs(found - plain).max() > 10 * np.abs(found - expected).max()


@pytest.mark.parametrize("rows", [(), (1,), (5,)])
def test_dynamic_layers_follow_new_kernels_to_the_bit(rows):
    layers = [chain((*rows, 40), L.Dense(30)) for _ in range(2)]
    for model in layers:
        in_place(Quantize("int8-dynamic"), model)
    model, other = layers
    x = one_sided("positive", (3, *rows, 40))
    own, compiled = outputs(model, x), model.predict_on_batch(x)
    before = model.get_weights()
    model.set_weights(other.get_weights())
    np.testing.assert_array_equal(outputs(model, x), outputs(other, x))
    np.testing.assert_array_equal(model.predict_on_batch(x), other.predict_on_batch(x))
    (kernel,) = quantized_variables(model)
    kernel.assign(np.flip(to_numpy(kernel)))
    np.testing.assert_array_equal(outputs(model, x), outputs(clone(model), x))
    model.set_weights(before)
    np.testing.assert_array_equal(outputs(model, x), own)
    np.testing.assert_array_equal(model.predict_on_batch(x), compiled)


def test_a_dynamic_layer_has_a_kernel_for_each_sample():
    inputs = keras.Input(batch_shape=(3, 8))
    model = keras.Model(inputs, L.EinsumDense("ab,abc->ac", (6,))(inputs))
    x = one_sided("positive", (3, 8))
    in_place(Quantize("int8-dynamic"), model)
    codes, scales = inputs_by_hand(x, 1)
    expected = outputs(km.dequantize(model), codes * scales)
    np.testing.assert_allclose(outputs(model, x), expected, rtol=1e-5, atol=2e-5)


def test_one_sided_inputs_lose_less_than_in_keras():
    model = chain((400,), L.Dense(30))
    x = one_sided("positive", (17, 400))
    theirs, expected = clone(model), outputs(model, x)
    theirs.layers[-1].quantize("int8")
    in_place(Quantize("int8-dynamic"), model)
    own, keras_own = (
        np.linalg.norm(outputs(each, x) - expected) for each in (model, theirs)
    )
    assert own < 0.8 * keras_own


@pytest.mark.parametrize("name", ["einsum_dense", "conv1d", "conv2d", "conv3d"])
def test_dynamic_products_stay_close_and_reload(name, tmp_path, origin):
    kind = KINDS[name]
    model, inputs = from_origin(kind.make(), origin), kind.inputs()
    expected = outputs(model, inputs)
    changes = in_place(Quantize("int8-dynamic"), model)
    assert changes[0].detail.endswith("int8 inputs")
    found = outputs(model, inputs)
    assert 0 < np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)
    np.testing.assert_array_equal(outputs(reloaded(model, tmp_path), inputs), found)


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8"])
def test_a_causal_convolution_sees_no_later_step(scheme, tmp_path):
    layer = L.Conv1D(8, 3, padding="causal", dilation_rate=2, name="causal")
    model = chain((11, 64), layer)
    x = np.random.default_rng(0).normal(size=(2, 11, 64)).astype("float32")
    expected = outputs(model, x)
    in_place(Quantize(scheme), model)
    (kernel,) = quantized_variables(model)
    kernel.block_count = 2  # as of a kernel of many bytes
    found = outputs(model, x)
    assert 0 < np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)
    np.testing.assert_array_equal(outputs(reloaded(model, tmp_path), x), found)
    other = x.copy()
    other[:, 6:] = 0
    if scheme == "int8":  # a sample of int8-dynamic has one scale for all of its steps
        np.testing.assert_array_equal(outputs(model, other)[:, :6], found[:, :6])


def test_dynamic_attention_and_time_distributed_layers():
    for name in ("attention", "time_distributed", "custom", "shared"):
        kind = KINDS[name]
        model, inputs = kind.make(), kind.inputs()
        expected = outputs(model, inputs)
        in_place(Quantize("int8-dynamic", granularity="tensor"), model)
        error = np.linalg.norm(outputs(model, inputs) - expected)
        assert 0 < error < 0.05 * np.linalg.norm(expected)
        assert any(v.dynamic for v in quantized_variables(model))


def test_samples_of_a_dynamic_layer_do_not_look_at_each_other():
    model = chain((8, 8, 3), L.Conv2D(4, 3), L.Flatten(), L.Dense(3))
    in_place(Quantize("int8-dynamic"), model)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    x[1] *= 100
    np.testing.assert_allclose(
        outputs(model, x)[:1], outputs(model, x[:1]), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(outputs(model, np.zeros((1, 8, 8, 3))), 0)


@pytest.mark.one_backend
def test_weights_are_chosen_by_path_and_by_class():
    def made():
        return chain(
            (6, 6, 2), L.Conv2D(3, 2, name="first"), L.Conv2DTranspose(3, 2, name="up"),
            L.Flatten(), L.Dense(2, name="head"),
        )  # fmt: skip

    def left_alone(**choice):
        changes = in_place(Quantize("int8", **choice), made())
        return [c.layer for c in changes if c.detail == "is excluded"]

    assert left_alone(exclude="head") == ["head"] * 2
    excluded = left_alone(exclude=["Conv2D", "head/kernel"])
    assert excluded == ["first", "first", "head"]
    assert left_alone(exclude="Conv2D.*|BaseConv.*") == [*["first"] * 2, *["up"] * 2]
    assert left_alone(exclude="Dense") == ["head"] * 2
    with pytest.raises(
        ConfigError, match="No weight path or layer class of the model .* matches"
    ):
        left_alone(exclude="LSTM")


def test_a_weight_of_another_name_is_quantized_where_it_is_named():
    model = chain((6,), L.Dense(5), L.PReLU(shared_axes=None), L.Reshape((5, 1)))
    changes = in_place(Quantize("int8", include="PReLU"), model)
    assert [c.detail for c in changes if "alpha" in c.weight] == [
        "has fewer than two axes"
    ]
    model = chain((6, 4), L.PReLU())
    changes = in_place(Quantize("int8", include="alpha"), model)
    assert changes[0].detail == "int8 with 4 scales, all zero"


def test_several_schemes_share_a_model(tmp_path):
    kind = KINDS["attention"]
    model, inputs = kind.make(), kind.inputs()
    steps = [Quantize("int4", exclude="query"), Quantize("int8")]
    result = km.compress(model, steps)
    schemes = {
        v.path.split("/")[-2]: v.coding.dtype for v in quantized_variables(result.model)
    }
    assert schemes == {
        "query": "int8", "key": "int4", "value": "int4", "attention_output": "int4"
    }  # fmt: skip
    found = outputs(result.model, inputs)
    np.testing.assert_array_equal(
        outputs(reloaded(result.model, tmp_path), inputs), found
    )


def test_a_quantized_model_trains_on_through_lora(tmp_path):
    model = chain((6,), L.Dense(16, activation="relu"), L.Dense(2))
    in_place(Quantize("int4"), model)
    for layer in model.layers[1:]:
        layer.enable_lora(2)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    history = model.fit(x, x[:, :2] * 2, epochs=8, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
    again = reloaded(model, tmp_path)
    np.testing.assert_allclose(outputs(again, x), outputs(model, x), atol=1e-6)


def test_zeros_and_entries_are_those_of_the_weight():
    model = chain((5,), L.Dense(3, use_bias=False))
    kernel = np.arange(15.0).reshape(5, 3) * (np.arange(15).reshape(5, 3) % 2)
    model.layers[-1].kernel.assign(kernel)
    for scheme in ("int8", "int4", "float16"):
        for symmetric in {True, scheme == "float16"}:
            small = clone(model)
            in_place(Quantize(scheme, symmetric=symmetric), small)
            figures = measure(small)
            assert (figures.parameters, figures.nonzero) == (15, 7)
            assert sum(x.parameters for x in layer_activations(small)) == 15


def test_the_noise_of_a_weight_is_told():
    model = chain((64,), L.Dense(64))
    changes = {
        scheme: in_place(Quantize(scheme), clone(model))
        for scheme in ("int4", "int8", "float16")
    }
    kernel = to_numpy(model.layers[-1].kernel).astype("float64")
    noise = kernel - kernel.astype("float16")
    expected = 10 * np.log10(np.square(kernel).sum() / np.square(noise).sum())
    found = {scheme: each[0].sqnr_db for scheme, each in changes.items()}
    assert found["float16"] == pytest.approx(expected, abs=1e-3)
    # Six decibels a bit, less what the largest entry of a channel leaves unused.
    assert 18 < found["int8"] - found["int4"] < 26
    assert changes["int8"][1].sqnr_db is None


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("value", "scheme", "message"),
    [
        (np.inf, "int4", "NaN or infinity in .* of 6 entries of 'dense.*/kernel'"),
        (np.nan, "float16", "Quantization needs finite weights. Received: NaN or inf"),
        (
            1e5,
            "float16",
            r"1 of 6 weights are too large for float16.*scheme='bfloat16'",
        ),
    ],
)
def test_weights_that_do_not_fit_are_an_error_and_nothing_is_changed(
    value, scheme, message
):
    model = chain((4,), L.Dense(3), L.Dense(2))
    kernel = np.zeros((3, 2))
    kernel[0, 0] = value
    model.layers[-1].kernel.assign(kernel)
    with pytest.raises(ModelError, match=message):
        in_place(Quantize(scheme), model)
    assert not quantized_variables(model)


@pytest.mark.parametrize("scheme", ["int8", "int4", "int8-dynamic", "bfloat16"])
def test_a_kernel_of_zeros_stays_one(scheme):
    model = chain((4,), L.Dense(3, kernel_initializer="zeros"))
    in_place(Quantize(scheme), model)
    assert outputs(model, np.ones((2, 4), "float32")).tolist() == [[0.0] * 3] * 2


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"granularity": "row"},
            "one of channel, tensor, group. Received: granularity",
        ),
        ({"symmetric": "no"}, "symmetric` of Quantize must be one of True, False"),
        (
            {"granularity": "tensor", "group_size": 64},
            "`group_size` only for granularity='group'. Received: group_size=64",
        ),
        (
            {"granularity": "channel", "group_size": 128},
            "`group_size` only for granularity='group'. Received: group_size=128",
        ),
        ({"bits": 4}, r"no argument 'bits'.*km.Quantize\('int4'\).*Received: bits=4"),
        ({"grop_size": 4}, r"Did you mean 'group_size'\? Expected: scheme, granu"),
        (
            {"calibration": km.Calibration("mse")},
            "only for scheme='int8-static'.*'mse'",
        ),
        ({"calibration": {"samples": 9}}, "only for scheme='int8-static'.*samples=9"),
        ({"scheme": "int7"}, r"scheme='int7'. Did you mean 'int8'\?"),
        ({"scheme": "INT8"}, r"scheme='INT8'. Did you mean 'int8'\?"),
        ({"group_size": 1}, "whole number from 2. Received: group_size=1"),
        (
            {"exclude": "("},
            "`exclude` of Quantize must be a list of regular",
        ),
        (
            {"scheme": "float16", "symmetric": False},
            "'float16' has no scales, .* Received: symmetric=False",
        ),
        (
            {"scheme": "bfloat16", "granularity": "group"},
            "'bfloat16' has no scales, .* Received: granularity='group'",
        ),
        (
            {"scheme": "int8-static", "symmetric": False},
            "sums integers over .* Received: symmetric=False",
        ),
        (
            {"scheme": "int8-dynamic", "granularity": "group"},
            "sums integers over whole channels",
        ),
    ],
)
def test_bad_choices_are_errors(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Quantize(**arguments)


@pytest.mark.one_backend
@pytest.mark.parametrize("size", [64, 128])
def test_a_group_size_alone_means_groups(size):
    assert Quantize("int4", group_size=size) == Quantize(
        "int4", granularity="group", group_size=size
    )


@pytest.mark.one_backend
def test_groups_have_128_entries_by_default():
    assert Quantize("int4", granularity="group").group_size == 128
    assert replace(Quantize("int4"), scheme="int3").granularity == "channel"


@pytest.mark.one_backend
@pytest.mark.parametrize("granularity", ["channel", "tensor", "group"])
def test_older_recipes_mean_the_same(granularity):
    old = {"technique": "quantize", "scheme": "int4", "scales": "max"}
    old |= {"granularity": granularity, "group_size": 128}
    config = from_json(old)
    assert config == Quantize("int4", granularity=granularity)
    assert from_json(config.to_json()) == config
    model = chain((256,), L.Dense(4))
    change, _ = in_place(config, model)
    scales = {"channel": 4, "tensor": 1, "group": 8}[granularity]
    assert change.after_bytes == 256 * 4 // 2 + 4 * scales
    with pytest.raises(ConfigError, match="Did you mean 'group_size'"):
        from_json({**old, "group_siz": 128})


def test_int4_by_default_has_groups_of_64_in_matrices_alone():
    layers = [L.Embedding(9, 100), L.Conv1D(40, 3), L.Dense(8), L.Flatten()]
    model = chain((5,), *layers, L.Dense(2), dtype="int32")
    config = Quantize("int4")
    assert from_json(config.to_json()) == config
    changes = [change for change in in_place(config, model) if change.changed]
    short = [change.detail.partition(" bfloat16 ")[0] for change in changes]
    # 100, 3 x 100, 40 and 3 x 8 inputs an output
    assert short == [f"int4 with {n}" for n in (9 * 2, 40, 8, 2)]
    halves = [9 * 50, 40 * 150, 8 * 20, 2 * 12]
    assert [c.after_bytes for c in changes] == [
        size + 2 * int(words.rpartition(" ")[2])
        for size, words in zip(halves, short, strict=True)
    ]


def test_int4_by_default_is_closer_than_keras_in_fewer_bytes():
    keras.utils.set_random_seed(1)
    model = chain((512,), L.Dense(300))
    layer = model.layers[-1]
    kernel = to_numpy(layer.kernel)
    change = in_place(Quantize("int4"), model)[0]
    error = np.square(to_numpy(layer.kernel.plain()) - kernel).sum()
    groups = in_groups(kernel, (0,), 128)  # as Keras rounds by default
    assert error < np.square(groups - kernel).sum()
    assert change.after_bytes < kernel.size // 2 + 5 * 300 * 4


def test_a_model_and_its_result_can_both_be_trained():
    """On JAX, a training step frees the memory of the values before it."""
    model = chain((4,), L.Dense(3, activation="relu"), L.BatchNormalization())
    model.compile("sgd", "mse")
    x, y = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
    small = km.compress(model, Quantize("int8")).model
    for one, other in [(model, small), (small, model)]:
        before = outputs(other, x)
        one.fit(x, y, verbose=0)
        np.testing.assert_array_equal(outputs(other, x), before)


def test_a_copy_shares_values_until_it_parts():
    model = chain((4,), L.Dense(3))
    copy = clone(model, shares=True)
    pairs = list(zip(model.weights, copy.weights, strict=True))
    if keras.backend.backend() == "jax":
        assert all(own.value is other.value for own, other in pairs)
    part_from(copy, model)
    assert not any(own.value is other.value for own, other in pairs)
    for own, other in pairs:
        np.testing.assert_array_equal(to_numpy(own), to_numpy(other))


@pytest.mark.one_backend
def test_the_signature_shows_no_address():
    assert " at 0x" not in str(inspect.signature(Quantize))


def test_a_padding_before_a_convolution_may_become_one_with_it():
    padded = [L.ZeroPadding2D(3), L.Conv2D(8, 7, strides=2), L.ReLU(), L.Flatten()]
    model = chain((32, 32, 3), *padded, L.Dense(2))
    in_place(Quantize("int8"), model)
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    model.compile()
    np.testing.assert_allclose(
        model.predict(x, verbose=0), outputs(model, x), rtol=1e-4, atol=1e-5
    )
