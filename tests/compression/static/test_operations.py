"""Every operation with a form in int8: rounded to the codes of its range."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.static.apply import quantize_static
from tests.compression.static.test_static import is_on_grid, ranges

L = keras.layers


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


def called(model, arrays):
    outputs = model(arrays if len(arrays) > 1 else arrays[0])
    return keras.ops.convert_to_numpy(outputs)


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("name", NAMES)
def test_one_operation_gives_codes_near_its_floats(name):
    model = OPERATIONS[name]()
    for layer in model.layers:
        if getattr(layer, "bias", None) is not None:
            layer.bias.assign(np.linspace(-1, 1, layer.bias.shape[0]))
    arrays = inputs_of(model, 200)
    given = (tuple(arrays),) if len(arrays) > 1 else arrays[0]
    made, _ = quantize_static(model, km.Quantize("int8-static"), given)
    ours, exact = called(made, arrays), called(model, arrays)
    (ends,) = {ends for ends in ranges(made).values() if is_on_grid(ours, ends)} or [0]
    assert ends
    assert np.unique(ours).size <= 256
    assert np.abs(ours - exact).max() <= 0.05 * np.abs(exact).max()
