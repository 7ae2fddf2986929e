"""A model with weights and activations in int8: what is in it, and what it gives."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.aware.learned import is_aware, is_static, learned
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.owners import as_floats
from kerasmem.compression.quantize.static.apply import quantize_static
from kerasmem.compression.quantize.static.split_layers import split
from kerasmem.compression.recipe import apply_technique
from kerasmem.compression.result import CompressionResult
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError, DataError, KerasMemWarning, ModelError
from kerasmem.graph.masks import mask_of
from tests.models import chain

L = keras.layers
ON_JAX = keras.backend.backend() == "jax"
STATIC = km.Quantize("int8-static")


def net(shape=(12, 12, 3), top="softmax"):
    """Two branches, a model within the model that is called twice, a join."""
    inner = keras.Sequential(
        [
            keras.Input((6, 6, 8)),
            L.Conv2D(8, 3, padding="same", use_bias=False),
            L.BatchNormalization(),
            L.ReLU(),
            L.Dropout(0.3),
        ],
        name="inner",
    )
    inputs = keras.Input(shape, name="picture")
    x = L.Conv2D(8, 3, strides=2, padding="same", name="stem")(inputs)
    x = L.BatchNormalization(name="norm")(x)
    x = L.ReLU(6.0)(x)
    y = L.DepthwiseConv2D(3, padding="same", activation="relu")(inner(inner(x)))
    x = keras.ops.relu(x + y)
    x = L.Concatenate()([L.MaxPooling2D()(x), L.AveragePooling2D(2)(y)])
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, L.Dense(5, activation=top, name="top")(x))
    random = np.random.default_rng(3)
    for weight in model.weights:
        if weight.name in ("gamma", "moving_variance"):
            weight.assign(random.uniform(0.5, 2, weight.shape))
        if weight.name in ("beta", "moving_mean"):
            weight.assign(0.3 * random.normal(size=weight.shape))
    return model


def pictures(count=64, shape=(12, 12, 3)):
    return np.random.default_rng(1).normal(size=(count, *shape)).astype("float32")


def static(model, x, **choice):
    """Return the model with codes, and the result of a compression around it."""
    made, changes = apply_technique(
        km.Quantize("int8-static", **choice), model, Context(x)
    )
    return CompressionResult(made, None, tuple(changes))


def outputs(model, x):
    if ON_JAX:  # it would compile every operation by itself
        return model.predict(x, verbose=0)
    return keras.ops.convert_to_numpy(model(x))


def layers_of(model):
    return {layer.name: type(layer).__name__ for layer in model.layers}


def ranges(model):
    """Return the ranges of a model by the names of the tensors."""
    return dict(learned(model).ranges)


def rounded(model):
    """Return the names of the tensors behind which a model rounds, in order."""
    layers = [x for x in model.layers if isinstance(x, FakeQuantize)]
    return [layer.tensors[0] for layer in layers]


def is_on_grid(values, ends):
    """Return whether all values are those of the 256 codes of a range."""
    step = (ends[1] - ends[0]) / 255
    return np.abs(values / step - np.rint(values / step)).max() < 1e-2


def test_a_net_rounds_its_activations_and_stores_its_kernels_in_int8(tmp_path):
    model, x = net(), pictures()
    result = static(model, x)
    made = result.model
    assert is_static(made)
    assert not is_aware(made)
    kernels = [w for w in made.weights if len(w.shape) > 1 and w.name == "kernel"]
    assert {keras.backend.standardize_dtype(kernel.dtype) for kernel in kernels} == {
        "int8"
    }
    assert {"picture", "top/linear"} <= ranges(made).keys()
    eager = keras.ops.convert_to_numpy(made(x))
    assert np.abs(eager - outputs(model, x)).max() < 0.03
    result.save(tmp_path / "m.keras")
    again = km.load_model(tmp_path / "m.keras")
    assert ranges(again) == ranges(made)
    np.testing.assert_allclose(again.predict(x, verbose=0), eager, atol=1e-5)


@pytest.mark.one_backend
def test_what_shares_a_scale_is_what_litert_wants_to():
    found = ranges(static(net(), pictures()).model)
    pools = [name for name in found if "pool" in name and "global" not in name]
    adds = [name for name in found if name.startswith("relu")]
    assert len(pools) == 2
    assert len({found[name] for name in [*pools, *adds[-1:]]}) == 1
    (relu6,) = (ends for name, ends in found.items() if name.startswith("re_lu"))
    assert relu6[1] <= 6  # the range of the ReLU6, not of the convolution before it


@pytest.mark.one_backend
def test_every_weight_is_accounted_for():
    model = net()
    result = static(model, pictures())
    told = {change.weight: change for change in result.changes}
    assert {weight.path for weight in model.weights} <= set(told)
    kernel = told["stem/kernel"]
    assert kernel.changed
    assert kernel.detail == "int8 with 8 scales, int8 inputs"
    assert kernel.after_bytes == 3 * 3 * 3 * 8 + 8 * 4
    assert 35 < kernel.sqnr_db < 60
    assert told["norm/gamma"].detail == "folded into 'stem'"


def test_layers_without_a_form_in_int8_stay_float_and_are_named():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, name="conv")(inputs)
    x = L.LayerNormalization(name="norm")(x)
    x = L.Conv2D(4, 3, activation="gelu", name="second")(x)
    x = L.Conv2D(4, 1, groups=2, name="grouped")(x)
    model = keras.Model(inputs, L.Dense(2, name="top")(L.Flatten()(x)))
    x = pictures(64, (8, 8, 3))
    result = static(model, x, exclude="top")
    told = {c.weight: c for c in result.changes}
    reasons = {name: c.detail for name, c in told.items() if not c.changed}
    assert reasons["norm/gamma"] == (
        "stays float: LayerNormalization has no int8 support"
    )
    grouped = told["grouped/kernel"]
    assert grouped.detail == "int8 with 4 scales, computed with floats: has groups"
    assert grouped.after_bytes == 4 * 2 + 4 * 4
    assert reasons["grouped/bias"] == "stays float: has groups"
    assert reasons["top/kernel"] == "stays float: is excluded"
    kinds = layers_of(result.model)
    assert kinds["conv"] == kinds["second"] == "QuantizedConv2D"
    assert kinds["norm"] == "LayerNormalization"
    assert kinds["top"] == "Dense"
    assert len(rounded(result.model)) == 2  # the inputs of both convolutions
    exact = outputs(model, x)
    assert np.abs(outputs(result.model, x) - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("judged", [False, True])
def test_a_file_is_compared_on_the_data_of_the_compression(judged, monkeypatch):
    inputs = keras.Input((12, 12, 3), name="picture")
    hint = keras.Input((2,), name="hint")
    x = L.Concatenate()([L.Flatten()(inputs), hint])
    model = keras.Model([inputs, hint], L.Dense(5, name="top")(x))
    x, held_out = ([n + pictures(), np.full((64, 2), n, "float32")] for n in (5, 7))
    given = {"validation_data": (held_out,)} if judged else {}
    result = km.compress(model, STATIC, data=(x,), **given)
    for few, all_of_them in zip(result.samples, held_out if judged else x, strict=True):
        np.testing.assert_array_equal(few, all_of_them[:32])
        assert few.base is None  # or the data would stay in memory
    monkeypatch.setattr("kerasmem.extras.litert.export", lambda *_, **how: how)
    assert result.export("m.tflite")["samples"][0] is result.samples
    assert result.export("m.tflite", samples=x)["samples"] is x


def test_a_file_is_compared_on_inputs_that_came_in_a_tuple(tmp_path):
    parts = [keras.Input((4,), name=name) for name in ("left", "right")]
    model = keras.Model(parts, L.Dense(3)(L.Concatenate()(parts)))
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    result = km.compress(model, km.Quantize("int8"), data=((x, 2 * x),))
    assert result.export(tmp_path / "m.tflite").samples == 8


@pytest.mark.one_backend
def test_data_that_cannot_be_read_again_after_the_work_is_no_loss():
    class ReadOnce(keras.utils.PyDataset):
        is_over = False

        def __len__(self):
            return 1

        def __getitem__(self, index):
            assert not self.is_over
            return np.ones((4, 4))

    class Last(km.Quantize):
        def applied(self, model, context=None):
            done = apply_technique(super(), model, context)
            context.data.is_over = True
            return done

    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    assert len(km.compress(model, Last("int8"), data=ReadOnce()).samples) == 4


@pytest.mark.one_backend
def test_what_was_compressed_without_data_has_no_samples():
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    assert km.compress(model, km.Quantize("int8")).samples is None
    left_out = keras.Input((4,), optional=True, name="left_out")
    taken = keras.Input((4,), name="taken")
    model = keras.Model([taken, left_out], L.Dense(3)(taken))
    data = ([np.ones((8, 4)), None],)
    assert km.compress(model, km.Quantize("int8"), data=data).samples is None


def test_a_sigmoid_gates_with_the_range_that_litert_has():
    inputs = keras.Input((8, 8, 3), name="picture")
    x = L.SeparableConv2D(6, 3, activation="relu", name="first")(inputs)
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(6, 1, activation="sigmoid", name="gate")(gate)
    x = L.Flatten()(L.Multiply()([x, gate]))
    model = keras.Model(inputs, L.Dense(1, activation="sigmoid", name="end")(x))
    x = pictures(64, (8, 8, 3))
    made = static(model, x).model
    found = ranges(made)
    assert found["gate"] == (0.0, 255 / 256)
    assert {"first/depthwise", "end/linear"} <= found.keys()
    assert "end" not in found  # computed with floats
    assert np.abs(outputs(made, x) - outputs(model, x)).max() < 0.02


@pytest.mark.one_backend
def test_a_static_model_is_named_where_another_is_expected():
    plain = CompressionResult(net(), None, ())
    with pytest.raises(ConfigError, match="with ranges, such as .*km.Quantize"):
        plain.export("m.tflite", scheme="int8-static")
    made = static(net(), pictures()).model
    for scheme in ("int8", "int8-static"):
        with pytest.raises(ModelError, match="has nothing to quantize"):
            km.compress(made, km.Quantize(scheme), data=pictures(), verbose=0)


@pytest.mark.one_backend
def test_ranges_may_come_from_elsewhere():
    model = keras.Sequential([keras.Input((4,)), L.Dense(3, name="dense")])
    name = model.inputs[0].name
    known = {name: (-1.0, 1.55), "dense": (0.0, 2.55)}
    made, _ = quantize_static(model, STATIC, None, known)
    assert ranges(made) == known
    assert is_on_grid(outputs(made, pictures(40, (4,))), known["dense"])
    with pytest.raises(ConfigError, match="data=None, ranges without 'dense'"):
        quantize_static(model, STATIC, None, {name: (-1.0, 1.0)})
    with pytest.raises(ConfigError, match=r"both finite.*\['dense'\]=\(0.0, nan\)"):
        quantize_static(model, STATIC, None, known | {"dense": (0.0, float("nan"))})


def test_a_channel_of_zeros_and_a_large_bias_are_exact_to_a_step():
    layer = L.Conv2D(3, 3)
    model = keras.Sequential([keras.Input((5, 5, 2)), layer])
    kernel = keras.ops.convert_to_numpy(layer.kernel).copy()
    kernel[..., 0] = 0.0
    kernel[..., 1] *= 1e-9
    layer.kernel.assign(kernel)
    layer.bias.assign([3.0, 50.0, 0.1])
    x = pictures(64, (5, 5, 2))
    made = static(model, x).model
    assert np.abs(outputs(made, x) - outputs(model, x)).max() <= 50 / 255
    assert np.abs(outputs(made, x)[..., 0] - 3.0).max() <= 50 / 255 / 2 + 1e-5


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("value", [0.0, 2.5, -1e30])
def test_an_activation_that_never_changes_has_codes(value):
    model = keras.Sequential([keras.Input((6,)), L.Dense(4), L.Dense(2)])
    made = static(model, np.full((64, 6), value, "float32")).model
    got = outputs(made, np.full((2, 6), value, "float32"))
    exact = outputs(model, np.full((2, 6), value, "float32"))
    assert np.isfinite(got).all()
    assert np.abs(got - exact).max() <= 0.02 * np.abs(exact).max() + 1e-6


@pytest.mark.one_backend
def test_bad_input_is_one_clear_error():
    model = net()
    with pytest.raises(
        ConfigError, match="needs samples .*Received: data=None.*pass data=x"
    ):
        km.compress(model, STATIC)
    with pytest.raises(DataError, match=r"shape \(4, 9\)"):
        km.compress(model, STATIC, data=np.zeros((4, 9)))
    x = pictures()
    x[3, 2, 2] = np.nan
    with pytest.raises(DataError, match="NaN or infinity in 3 of .* of 'picture'"):
        km.compress(model, STATIC, data=x)
    with pytest.raises(ModelError, match="nothing to quantize"):
        rows = keras.Sequential([keras.Input((4, 6)), L.LayerNormalization()])
        km.compress(rows, STATIC, data=pictures(40, (4, 6)))
    with pytest.raises(ConfigError, match="exclude='nowhere'"):
        km.compress(model, km.Quantize("int8-static", exclude="nowhere"), data=x)


def test_kernels_of_zeros_give_their_biases():
    model = chain((5, 5, 2), L.Conv2D(3, 3), L.ReLU(), L.Flatten(), L.Dense(4))
    for layer in (model.layers[1], model.layers[-1]):
        layer.kernel.assign(keras.ops.zeros(layer.kernel.shape))
        layer.bias.assign(np.linspace(-1, 2, layer.bias.shape[0]))
    x = pictures(40, (5, 5, 2))
    result = static(model, x)
    np.testing.assert_allclose(outputs(result.model, x), outputs(model, x), atol=0.01)
    told = [c.detail for c in result.changes if c.weight.endswith("kernel")]
    assert [detail.rpartition(", ")[2] for detail in told] == ["all zero"] * 2


def test_infinite_weights_are_an_error_and_never_nan():
    model = keras.Sequential([keras.Input((3,)), L.Dense(2, name="dense")])
    model.layers[0].kernel.assign(np.full((3, 2), np.inf))
    with pytest.raises((DataError, ModelError), match="NaN or infinity"):
        km.compress(model, STATIC, data=pictures(64, (3,)))


def test_compress_reports_what_it_saves():
    model = keras.Sequential([keras.Input((64,)), L.Dense(64), L.Dense(64)])
    report = km.compress(model, STATIC, data=pictures(64, (64,))).report
    assert report.weight_ratio > 3
    assert report.steps[0]["scheme"] == "int8-static"
    # Scales and multipliers take bytes, and are no parameters.
    assert report.after.parameters == report.before.parameters == 2 * 64 * 65


def test_training_moves_the_biases_and_neither_codes_nor_ranges(tmp_path):
    model = keras.Sequential([keras.Input((6,)), L.Dense(4, "relu"), L.Dense(2)])
    model.compile("sgd", "mse")
    x = pictures(40, (6,))
    km.compress(model, STATIC, data=x, verbose=0).save(tmp_path / "small.keras")
    small = km.load_model(tmp_path / "small.keras")
    before, known = small.get_weights(), ranges(small)
    first = small.evaluate(x, x[:, :2], verbose=0)
    history = small.fit(x, x[:, :2], epochs=5, verbose=0).history["loss"]
    assert history[-1] < first
    assert ranges(small) == known
    for weight, value in zip(small.weights, before, strict=True):
        is_same = np.array_equal(keras.ops.convert_to_numpy(weight), value)
        assert is_same == (not weight.trainable)
        assert weight.trainable == (weight.name == "bias")
    km.save_model(small, tmp_path / "trained.keras")
    again = km.load_model(tmp_path / "trained.keras")
    np.testing.assert_allclose(outputs(again, x), outputs(small, x), atol=1e-6)


def test_its_float_form_has_the_values_of_the_codes():
    model, x = net(), pictures()
    made = static(model, x).model
    floats = km.dequantize(made)
    assert not is_static(floats)
    assert type(floats.get_layer("stem")) is L.Conv2D
    exact = outputs(model, x)
    assert 0 < np.abs(outputs(floats, x) - exact).max() < 0.01
    assert np.abs(outputs(floats, x) - outputs(made, x)).max() < 0.03
    with as_floats(made):
        called = keras.ops.convert_to_numpy(made(x))  # `predict` is compiled already
    np.testing.assert_allclose(called, outputs(floats, x), atol=1e-5)
    assert np.abs(outputs(floats, x) - outputs(made, x)).max() > 1e-4


@pytest.mark.one_backend
def test_a_model_that_is_called_twice_has_one_range_for_both_calls():
    inner = chain((6,), L.Dense(6, activation="tanh", name="dense"))
    inputs = keras.Input((6,))
    model = keras.Model(inputs, L.Dense(2)(inner(5 * inner(inputs))))
    made = static(model, pictures(40, (6,))).model
    found = ranges(made)
    names = [name for name in found if name.endswith("dense/linear")]
    assert len(names) == 2
    assert len({found[name] for name in names}) == 1


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_separable_convolution_is_two_wherever_its_channels_are(data_format):
    layer = L.SeparableConv2D(4, 3, depth_multiplier=2, data_format=data_format)
    last = data_format == "channels_last"
    layer.build(shape := (None, 8, 8, 3) if last else (None, 3, 8, 8))
    between, after = (part for _, part, _ in split(layer))
    made = after.compute_output_shape(between.compute_output_shape(shape))
    assert made == layer.compute_output_shape(shape)
    assert between.kernel.shape == layer.depthwise_kernel.shape
    assert after.kernel.shape == layer.pointwise_kernel.shape


@pytest.mark.one_backend
def test_few_samples_are_told():
    with pytest.warns(KerasMemWarning, match="there are 8 samples"):
        static(net(), pictures(8))


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"calibration": {"method": "median"}},
            "method` of Calibration must be one of min",
        ),
        ({"calibration": {"samples": 0}}, "samples` of Calibration must be a whole"),
        (
            {"calibration": {"sample": 1}},
            "Unknown argument 'sample' .*Did you mean 'samples'",
        ),
        ({"calibration": "entropy"}, "be a km.Calibration, or a dict .*'entropy'"),
        ({"granularity": "group"}, "per channel or per tensor"),
        ({"symmetric": False}, "per channel or per tensor"),
        ({"include": "PReLU"}, "supports in int8. Received: include="),
    ],
)
def test_a_choice_that_does_not_fit_is_an_error(wrong, text):
    with pytest.raises(ConfigError, match=text):
        km.Quantize("int8-static", **wrong)


@pytest.mark.one_backend
def test_one_scale_for_a_kernel_is_coarser_than_one_for_a_channel():
    model, x = net(), pictures()
    noise = {}
    for granularity in ("channel", "tensor"):
        changes = static(model, x, granularity=granularity).changes
        noise[granularity] = [c.sqnr_db for c in changes if c.sqnr_db is not None]
    assert np.mean(noise["channel"]) > np.mean(noise["tensor"]) + 0.5


@pytest.mark.parametrize("seed", [1, 3])  # with either it lost the answer
def test_entropy_loses_next_to_nothing(seed):
    keras.utils.set_random_seed(seed)
    model, x = net(top=None), pictures()
    exact = outputs(model, x)
    made = static(model, x, calibration=km.Calibration("entropy")).model
    # Both calls of the model within the model have one range.
    assert np.square(outputs(made, x) - exact).mean() < 1.5e-3 * exact.var()


def test_half_precision_around_it_changes_nothing_within():
    policy = {"dtype": "mixed_bfloat16"}
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            L.Conv2D(4, 3, activation="relu", **policy),
            L.Flatten(**policy),
            L.Dense(3, **policy),
        ]
    )
    x = pictures(64, (6, 6, 2))
    made = static(model, x).model
    assert keras.backend.standardize_dtype(made(x[:1]).dtype) == "bfloat16"
    exact = np.asarray(outputs(model, x), "float32")
    found = np.asarray(outputs(made, x), "float32")
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.filterwarnings("ignore:With 'int8-static'")
def test_masks_reach_what_stands_behind_codes():
    inputs = keras.Input((6,))
    x = keras.layers.Embedding(9, 8, mask_zero=True)(inputs)
    x = keras.layers.Dense(12, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.LSTM(4)(x))
    words = np.random.default_rng(0).integers(1, 9, (32, 6))
    words[:, 3:] = 0
    small = km.compress(model, km.Quantize("int8-static"), data=words).model
    assert is_static(small)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(small(words)),
        keras.ops.convert_to_numpy(model(words)),
        atol=0.02,
    )


@pytest.mark.filterwarnings("ignore:With 'int8-static'")
@pytest.mark.filterwarnings("ignore:Layer .* does not support masking")
def test_a_mask_goes_into_a_model_within_the_model():
    steps = keras.Input((6, 5))
    inner = keras.Model(steps, L.LSTM(4)(L.Dense(12, activation="relu")(steps)))
    inputs = keras.Input((6, 5))
    model = keras.Model(inputs, L.Dense(3)(inner(L.Masking()(inputs))))
    x = np.random.default_rng(0).normal(size=(32, 6, 5)).astype("float32")
    x[:, 3:] = 0
    small = km.compress(model, STATIC, data=x).model
    np.testing.assert_allclose(outputs(small, x), outputs(model, x), atol=0.03)


@pytest.mark.filterwarnings("ignore:Layer .* does not support masking")
@pytest.mark.filterwarnings("ignore:.*does not support mask")
def test_masks_end_where_they_end_in_keras():
    inputs = keras.Input((8,))
    x = L.Embedding(9, 8, mask_zero=True)(inputs)
    x = L.MaxPooling1D(2)(L.Conv1D(12, 3, padding="causal", activation="relu")(x))
    model = keras.Model(inputs, L.LSTM(4)(x))
    words = np.random.default_rng(0).integers(1, 9, (40, 8))
    words[:, 3:] = 0
    small = km.compress(model, STATIC, data=words).model
    assert {"conv1d", "max_pooling1d"} <= {
        n.partition("_fake")[0] for n in ranges(small)
    }
    np.testing.assert_allclose(outputs(small, words), outputs(model, words), atol=0.02)


def joins(pair):
    """Return what operations and layers on two tensors make of them."""
    both = L.Add()(pair)
    return [
        both,
        L.Multiply()(pair),
        L.Concatenate()(pair),
        pair[0] + pair[1],
        pair[0] * pair[1],
        keras.ops.relu(L.Add()(pair)),
        L.Activation("silu")(both),
        keras.ops.silu(both),
    ]


@pytest.mark.filterwarnings("ignore:.*does not support mask")
@pytest.mark.parametrize("masked", [(True, True), (True, False), (False, True)])
def test_the_masks_of_two_tensors_are_joined_as_in_keras(masked):
    words = np.random.default_rng(0).integers(1, 9, (40, 2, 6))
    words[:, 0, 2:4] = words[:, 1, 3:5] = 0
    words = [words[:, 0], words[:, 1]]
    inputs = [keras.Input((6,), name=name) for name in ("left", "right")]
    pair = [
        L.Dense(7)(L.Embedding(9, 8, mask_zero=mask)(x))
        for x, mask in zip(inputs, masked, strict=True)
    ]
    model = keras.Model(inputs, joins(pair))
    for weight in model.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    small = km.compress(model, STATIC, data=(words, None)).model
    for pair in zip(model(words), small(words), strict=True):
        masks = [mask_of(x) for x in pair]
        want, have = (m if m is None else keras.ops.convert_to_numpy(m) for m in masks)
        np.testing.assert_array_equal(have, want)
        exact, rounded = map(keras.ops.convert_to_numpy, pair)
        assert np.abs(rounded - exact).max() < 0.03 * np.abs(exact).max()


def test_what_is_called_in_training_mode_stays_as_it_is():
    inputs = keras.Input((8,))
    x = keras.layers.Dense(8, activation="relu")(inputs)
    x = keras.layers.Dropout(0.5, name="drop")(x, training=True)
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    small = km.compress(model, km.Quantize("int8-static"), data=x).model
    assert small.get_layer("drop")
    once, twice = (keras.ops.convert_to_numpy(small(x)) for _ in range(2))
    assert (once != twice).any()


def shortcuts(pad):
    """A ResNet whose shortcuts get more channels by a padding, and no convolution."""
    inputs = x = keras.Input((8, 8, 4), name="picture")
    for width in (8, 16):
        y = L.Conv2D(width, 3, strides=2, padding="same")(x)
        short = L.AveragePooling2D(2)(x)
        x = L.ReLU()(y + pad(short, width // 4))
    x = L.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, L.Dense(3, activation="softmax")(x))


def padded(x, count, **how):
    return keras.ops.pad(x, [(0, 0), (0, 0), (0, 0), (count, count)], **how)


def test_shortcuts_padded_with_zeros_are_rounded(tmp_path):
    model, x = shortcuts(padded), pictures(64, (8, 8, 4))
    made = static(model, x).model
    found = ranges(made)
    for name in ("average_pooling2d", "pad"):
        assert sum(tensor.startswith(name) for tensor in found) == 2
    exact = outputs(model, x)
    assert np.abs(outputs(made, x) - exact).max() < 0.05
    km.save_model(made, tmp_path / "m.keras")
    again = km.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(outputs(again, x[:4]), outputs(made, x[:4]), atol=1e-6)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("pad", "reason"),
    [
        (
            lambda x, count: padded(x, count, constant_values=1.0),
            "pads with nonzero values",
        ),
        (
            lambda x, count: padded(x, count, mode="reflect"),
            "pads in the mode 'reflect'",
        ),
        (
            lambda x, _: keras.ops.repeat(x, 2, axis=-1),
            "Repeat has no int8 support",
        ),
    ],
)
def test_a_padding_that_stays_float_says_why(pad, reason):
    changes = static(shortcuts(pad), pictures(64, (8, 8, 4))).changes
    assert [c.detail for c in changes].count(f"stays float: {reason}") == 2


@pytest.mark.one_backend
def test_augmentation_in_front_costs_nothing():
    """Ranges and reported figures are those of inference, which skips it."""
    keras.utils.set_random_seed(0)
    inside = L.RandomRotation(0.3, seed=1), L.RandomFlip("horizontal", seed=1)
    top = L.Conv2D(8, 3, activation="relu"), L.GlobalAveragePooling2D(), L.Dense(3)
    model, plain = chain((12, 12, 3), *inside, *top), chain((12, 12, 3), *top)
    x = np.random.default_rng(0).normal(size=(32, 12, 12, 3)).astype("float32")
    found, expected = static(model, x), static(plain, x)
    np.testing.assert_array_equal(
        found.model.predict(x, verbose=0), expected.model.predict(x, verbose=0)
    )
    ratios = [
        [c.output_sqnr_db for c in r.changes if c.changed] for r in (found, expected)
    ]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3)
