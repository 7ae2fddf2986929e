"""The integers of int8-static are those of LiteRT's reference kernels."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.compression.quantize import Calibration
from kerasmem.compression.quantize.activations import calibrate
from kerasmem.compression.quantize.static.apply import integer_model
from kerasmem.compression.quantize.static.base import (
    Codes,
    FromCodes,
    fixed_point,
    times,
)
from kerasmem.compression.quantize.static.calls import split
from kerasmem.errors import ModelError
from kerasmem.exporting.integer import integer_file
from kerasmem.exporting.interpreters import LiteRT
from kerasmem.graph.flat_calls import flatten

L = keras.layers
int32 = st.integers(-(1 << 30), 1 << 30)
factors = st.floats(2.0**-28, 0.999)


def one(shape, *layers):
    inputs = keras.Input(shape)
    x = inputs
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def two(join):
    inputs = [keras.Input((5, 5, 3), name="left"), keras.Input((5, 5, 3), name="right")]
    return keras.Model(inputs, join(inputs))


def normalization():
    layer = L.BatchNormalization()
    model = one((4, 4, 5), layer)
    random = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(random.uniform(0.2, 2, weight.shape))
    return model


OPERATIONS = {
    "conv": lambda: one((6, 6, 3), L.Conv2D(5, 3, padding="same", strides=2)),
    "conv_relu": lambda: one((6, 6, 3), L.Conv2D(5, (1, 3), activation="relu")),
    "dilated_conv": lambda: one(
        (7, 7, 3), L.Conv2D(4, 3, dilation_rate=2, padding="same"), L.ReLU(6.0)
    ),
    "wide_conv": lambda: one((3, 3, 300), L.Conv2D(2, 3, use_bias=False)),
    "conv1d": lambda: one((9, 3), L.Conv1D(5, 3, padding="same", strides=2)),
    "conv1d_causal": lambda: one(
        (9, 3), L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu")
    ),
    "conv1d_leaky": lambda: one((9, 3), L.Conv1D(4, 2, activation="leaky_relu")),
    "max_pool_1d": lambda: one((9, 3), L.MaxPooling1D(3, 2, padding="same")),
    "average_pool_1d": lambda: one((9, 3), L.AveragePooling1D(2)),
    "depthwise": lambda: one(
        (6, 6, 4), L.DepthwiseConv2D(3, padding="same", activation="relu6")
    ),
    "depthwise_twice": lambda: one((6, 6, 3), L.DepthwiseConv2D(3, depth_multiplier=2)),
    "depthwise_1d": lambda: one((9, 3), L.DepthwiseConv1D(3, 2, depth_multiplier=2)),
    "dense": lambda: one((1500,), L.Dense(9)),
    "dense_rows": lambda: one((3, 7), L.Dense(4, activation="relu")),
    "dense_one": lambda: one((9,), L.Dense(1)),
    "batch_norm": normalization,
    "normalization": lambda: one(
        (4, 5, 3), L.Normalization(mean=[0.5, -1.0, 2.0], variance=[4.0, 0.5, 1.0])
    ),
    "rescaling": lambda: one((5, 4), L.Rescaling(1 / 127.5, offset=-1)),
    "add": lambda: two(L.Add()),
    "add_relu": lambda: two(lambda pair: keras.ops.relu(pair[0] + pair[1])),
    "multiply": lambda: two(L.Multiply()),
    "concatenate": lambda: two(L.Concatenate(axis=-1)),
    "mean": lambda: one((5, 7, 4), L.GlobalAveragePooling2D()),
    "mean_kept": lambda: one((5, 4, 4), L.GlobalAveragePooling2D(keepdims=True)),
    "max_pool": lambda: one((7, 7, 3), L.MaxPooling2D(3, 2, padding="same")),
    "average_pool": lambda: one((7, 7, 3), L.AveragePooling2D(3, 2, padding="same")),
    "relu": lambda: one((4, 3), L.ReLU()),
    "relu6": lambda: one((4, 3), L.Activation("relu6")),
    "sigmoid": lambda: one((4, 3), L.Activation("sigmoid"), L.Reshape((12,))),
    "tanh": lambda: one((4, 3), keras.ops.tanh, L.Flatten()),
    "leaky_relu": lambda: one((4, 3), L.LeakyReLU(0.3)),
    "leaky_relu_within": lambda: one((4, 6), L.Dense(3, activation="leaky_relu")),
    "leaky_relu_function": lambda: one((4, 3), lambda x: keras.ops.leaky_relu(x, 1.5)),
    "hard_silu": lambda: one((4, 30), L.Activation("hard_swish")),
    "hard_silu_within": lambda: one((7, 7, 3), L.Conv2D(4, 3, activation="hard_silu")),
    "hard_silu_function": lambda: one((4, 30), keras.ops.hard_silu),
    "silu": lambda: one((7, 7, 3), L.Conv2D(4, 3, activation="silu")),
    "silu_alone": lambda: one((4, 3), L.Activation("swish")),
    "pad": lambda: one((4, 4, 2), L.ZeroPadding2D(((1, 0), (2, 3)))),
    "pad_1d": lambda: one((4, 3), L.ZeroPadding1D((2, 1))),
    "pad_channels": lambda: one(
        (4, 4, 2), lambda x: keras.ops.pad(x, [(0, 0), (0, 1), (0, 0), (1, 2)])
    ),
    "reshape": lambda: one((4, 3, 2), L.Reshape((2, 12)), L.Flatten()),
}


# JAX compiles every operation of every shape by itself.
VARIANTS = [
    "conv_relu",
    "dilated_conv",
    "conv1d_leaky",
    "average_pool_1d",
    "dense_rows",
    "dense_one",
    "normalization",
    "add_relu",
    "mean_kept",
    "depthwise_twice",
    "depthwise_1d",
    "concatenate",
    "relu6",
    "silu",
    "silu_alone",
    "leaky_relu_function",
    "leaky_relu_within",
    "hard_silu_function",
    "hard_silu_within",
    "tanh",
    "reshape",
    "pad",
    "pad_1d",
]
ON_JAX = keras.backend.backend() == "jax"
NAMES = [name for name in OPERATIONS if not (ON_JAX and name in VARIANTS)]


def inputs_of(model, count, seed=0):
    random = np.random.default_rng(seed)
    return [
        (3 * random.normal(size=(count, *x.shape[1:])) + 0.5).astype("float32")
        for x in model.inputs
    ]


def made(model, arrays, **kwargs):
    """Return the model with codes, in ranges that NumPy finds."""
    every = Calibration(samples=len(arrays[0]))
    given = (tuple(arrays),) if len(arrays) > 1 else arrays[0]
    ranges = calibrate(model, given, every, calls=flatten(model, split))
    return integer_model(model, {r.tensor: (r.low, r.high) for r in ranges}, **kwargs)


def called(model, arrays):
    outputs = model(arrays if len(arrays) > 1 else arrays[0])
    return keras.ops.convert_to_numpy(outputs)


def codes_of(model, arrays):
    """Return the codes that a model has before it makes floats of them."""
    (last,) = [layer for layer in model.layers if isinstance(layer, FromCodes)]
    return called(keras.Model(model.input, last.input), arrays)


def litert_codes(content, model, arrays, kernels="reference"):
    file = LiteRT(content, kernels=kernels)
    given = {}
    for tensor, array in zip(model.inputs, arrays, strict=True):
        scale, zero = file.inputs[tensor.name]["quantization"]
        steps = np.rint(array / np.float32(scale)) + zero
        given[tensor.name] = np.clip(steps, -128, 127).astype("int8")
    return file(given)[0]


@settings(deadline=None)
@given(int32, factors)
def test_a_product_is_rounded_twice_as_in_64_bits(number, factor):
    mantissa, exponent = (int(x) for x in fixed_point(np.array(factor)))
    high = (number * mantissa + (1 << 30)) >> 31
    bits = -exponent
    remainder = high & ((1 << bits) - 1)
    expected = (high >> bits) + (remainder > (((1 << bits) - 1) >> 1) + (high < 0))
    got = times(
        keras.ops.convert_to_tensor(np.array([number], "int32")), mantissa, exponent
    )
    assert keras.ops.convert_to_numpy(got).tolist() == [expected]


@settings(deadline=None)
@given(int32, factors)
def test_a_product_is_rounded_once_as_in_64_bits(number, factor):
    mantissa, exponent = (int(x) for x in fixed_point(np.array(factor)))
    total = 31 - exponent
    expected = (number * mantissa + (1 << (total - 1))) >> total
    array = keras.ops.convert_to_tensor(np.array([number], "int32"))
    got = times(array, mantissa, exponent, twice=False)
    assert keras.ops.convert_to_numpy(got).tolist() == [expected]


@given(st.floats(-100, 0), st.floats(0.01, 100))
def test_zero_has_a_code_and_the_ends_of_a_range_are_near_one(low, high):
    codes = Codes.of_range(low, high)
    for value in (0.0, low, high):
        near = codes.scale * (codes.of(value) - codes.zero_point)
        assert abs(near - value) <= 1.001 * codes.scale
    assert codes.of(0.0) == codes.zero_point


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("name", NAMES)
def test_one_operation_gives_the_integers_of_litert(name):
    model = OPERATIONS[name]()
    for layer in model.layers:
        if getattr(layer, "bias", None) is not None:
            layer.bias.assign(np.linspace(-1, 1, layer.bias.shape[0]))
    arrays = inputs_of(model, 1000)
    integers, _ = made(model, arrays)
    ours = codes_of(integers, arrays)
    theirs = litert_codes(integer_file(integers), integers, arrays)
    gaps = np.abs(ours.astype(int) - theirs)
    assert ours.shape == theirs.shape
    assert gaps.max() <= 1
    assert (gaps == 0).mean() >= 0.999
    (last,) = [layer for layer in integers.layers if isinstance(layer, FromCodes)]
    codes, exact = last.output_codes, called(model, arrays)
    near = codes.scale * (ours.astype("float32") - codes.zero_point)
    assert np.abs(near - exact).max() <= 0.05 * np.abs(exact).max()


def test_a_mean_in_far_coarser_steps_is_zero():
    model = one((16, 16, 2), L.GlobalAveragePooling2D(name="mean"))
    # The scales are 2 ** 28 apart: a shift by more than the 32 bits of an integer.
    ranges = {model.inputs[0].name: (0.0, 2.0**-28), "mean": (0.0, 1.0)}
    integers, _ = integer_model(model, ranges)
    arrays = [np.full((3, 16, 16, 2), 2.0**-28, "float32")]
    ours = codes_of(integers, arrays)
    assert (ours == -128).all()
    assert (litert_codes(integer_file(integers), integers, arrays) == -128).all()


@pytest.mark.parametrize("layer", [L.Softmax(), L.Activation("softmax")])
def test_a_softmax_of_steps_too_small_for_litert_is_refused(layer):
    # LiteRT itself would end the process.
    model = keras.Sequential([keras.Input((5,), name="x"), L.Dense(3, name="y"), layer])
    for top, runs in ((2e-6, False), (8e-6, True)):
        integers, _ = integer_model(model, {"x": (-1.0, 1.0), "y": (-top / 2, top / 2)})
        if runs:
            given = {"x": np.zeros((2, 5), "int8")}
            (scores,) = LiteRT(integer_file(integers), kernels="reference")(given)
            assert scores.shape == (2, 3)
        else:
            with pytest.raises(ModelError, match="LiteRT cannot run .*steps of 7.8"):
                integer_file(integers)


@pytest.mark.parametrize(
    "layer", [L.Dense(3, activation="relu6", name="y"), L.Activation("relu6", name="y")]
)
def test_a_relu6_of_steps_too_small_for_litert_is_refused(layer):
    # LiteRT counts 6 in them, in 32 bits.
    model = keras.Sequential([keras.Input((3,), name="x"), layer])
    for step, runs in ((2.7e-9, False), (2.8e-9, True)):
        top = 255 * step
        integers, _ = integer_model(model, {"x": (-top, top), "y": (0.0, top)})
        if runs:
            given = {"x": np.full((2, 3), 127, "int8")}
            (codes,) = LiteRT(integer_file(integers), kernels="reference")(given)
            assert codes.shape == (2, 3)
        else:
            with pytest.raises(ModelError, match="LiteRT cannot run 'y'.*of 2.7e-09"):
                integer_file(integers)


@pytest.mark.parametrize("low", [-300.0, -20.0, -3.0, -0.5, -0.01])
@pytest.mark.parametrize("high", [200.0, 6.0, 1.0, 0.02])
def test_a_hard_silu_is_that_of_litert_in_every_range(low, high):
    model = one((256,), L.Activation("hard_silu", name="end"))
    least = -0.375 if low < -1.5 else low * (low + 3) / 6
    top = high if high > 3 else high * (high + 3) / 6
    ranges = {model.inputs[0].name: (low, high), "end": (least, top)}
    integers, _ = integer_model(model, ranges)
    arrays = [np.linspace(low, high, 256, dtype="float32")[None]]
    if high - low >= 128 * (top - least):
        with pytest.raises(ModelError, match="LiteRT cannot run the file.*HARD_SWISH"):
            litert_codes(integer_file(integers), integers, arrays)
        return
    theirs = litert_codes(integer_file(integers), integers, arrays)
    np.testing.assert_array_equal(codes_of(integers, arrays), theirs)


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize(("size", "coded"), [(128, True), (129, False)])
def test_a_large_average_is_exact_or_stays_float(size, coded):
    model = one((size, size, 1), L.AveragePooling2D(size, name="pool"), L.Flatten())
    arrays = inputs_of(model, 4)
    arrays[0][0], arrays[0][1, 0], arrays[0][2, :, 0] = 9.0, 1e-3, -9.0
    if not coded:
        with pytest.raises(ModelError, match="nothing to quantize"):
            made(model, arrays)
        return
    integers, _ = made(model, arrays)
    theirs = litert_codes(integer_file(integers), integers, arrays)
    np.testing.assert_array_equal(codes_of(integers, arrays), theirs)
