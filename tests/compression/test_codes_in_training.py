"""Gradients through codes, and through LoRA beside them, against NumPy."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.graph.values import to_numpy
from tests.compression.aware.gradient import gradient_of

RANK, ALPHA = 2, 6
BIAS = {"bias_initializer": "glorot_normal"}
LAYERS = {
    "dense": (keras.layers.Dense, (12,), ((20,), BIAS), "xa,ab->xb"),
    "of sequences": (keras.layers.Dense, (5, 12), ((20,), BIAS), "xya,ab->xyb"),
    "into heads": (
        *(keras.layers.EinsumDense, (5, 12)),
        *((("abc,cde->abde", (None, 3, 4)), {}), "abc,cde->abde"),
    ),
    "of heads": (
        *(keras.layers.EinsumDense, (5, 3, 4)),
        *((("abcd,cde->abe", (None, 12)), {}), "abcd,cde->abe"),
    ),
    "heads first": (
        *(keras.layers.EinsumDense, (5, 12)),
        *((("btd,ndh->btnh", (None, 3, 4)), {}), "btd,ndh->btnh"),
    ),
}
CODINGS = {
    "int8": {"scheme": "int8"},
    "int4": {"scheme": "int4"},
    "groups": {"scheme": "int4", "granularity": "group", "group_size": 4},
    "zero points": {"scheme": "int4", "symmetric": False},
    "float16": {"scheme": "float16"},
}


def coded(name, coding, *, lora=False, blocks=1):
    """Return a model with codes, its layer, and samples."""
    keras.utils.set_random_seed(4)
    cls, shape, (args, more), _ = LAYERS[name]
    inputs = keras.Input(shape)
    model = keras.Model(inputs, cls(*args, **more, name="coded")(inputs))
    model = km.compress(model, km.Quantize(**CODINGS[coding]), verbose=0).model
    layer = model.get_layer("coded")
    for kernel in quantized_variables(model):
        kernel.block_count = blocks
    if lora:
        layer.enable_lora(RANK, ALPHA)
        up = layer.lora_kernel_b
        up.assign(np.random.default_rng(0).normal(size=up.shape))
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype("float32")
    return model, layer, x


def values(y):
    return to_numpy(keras.ops.stop_gradient(y))


def whole(layer):
    """Return the kernel that NumPy multiplies with: of the codes, and of LoRA."""
    kernel = to_numpy(layer._kernel.plain())
    if not layer.lora_enabled:
        return kernel
    down, up = map(to_numpy, (layer.lora_kernel_a, layer.lora_kernel_b))
    return kernel + ALPHA / RANK * down @ up


def wave(y):
    return np.cos(np.arange(y.size, dtype="float32")).reshape(y.shape)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_values_and_slopes_of_inputs_are_those_of_the_floats(name, coding, lora):
    equation = LAYERS[name][-1]
    taken, rest = equation.split(",")
    own, output = rest.split("->")
    for blocks in (1, 3):
        model, layer, x = coded(name, coding, lora=lora, blocks=blocks)
        kernel = whole(layer)
        expected = np.einsum(equation, x, kernel)
        if layer.bias is not None:
            expected += to_numpy(layer.bias)
        seen = values(model(x, training=True))
        np.testing.assert_allclose(seen, expected, atol=1e-5)
        np.testing.assert_allclose(values(model(x)), seen, atol=1e-5)
        dy = wave(expected)
        by = keras.ops.convert_to_tensor(dy)
        found = gradient_of(lambda t, m=model, by=by: m(t, training=True) * by, x)
        slope = np.einsum(f"{output},{own}->{taken}", dy, kernel)
        np.testing.assert_allclose(found, slope, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_moves_lora_as_arithmetic_says(name):
    model, layer, x = coded(name, "groups", lora=True)
    before = [to_numpy(w).copy() for w in (layer.lora_kernel_a, layer.lora_kernel_b)]
    y = values(model(x))
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
    model.train_on_batch(x, y - wave(y))
    dy = 2 * wave(y) / y.size
    taken, rest = LAYERS[name][-1].split(",")
    own, output = rest.split("->")
    of_kernel = np.einsum(f"{taken},{output}->{own}", x, dy) * ALPHA / RANK
    down, up = before
    flat = of_kernel.reshape(-1, of_kernel.shape[-1])
    np.testing.assert_allclose(
        to_numpy(layer.lora_kernel_a), down - of_kernel @ up.T, atol=1e-5
    )
    np.testing.assert_allclose(
        to_numpy(layer.lora_kernel_b),
        up - down.reshape(-1, RANK).T @ flat,
        atol=1e-5,
    )


def test_codes_between_layers_that_are_trained_do_not_move():
    keras.utils.set_random_seed(4)
    sizes = {"first": 8, "middle": 9, "last": 2}
    layers = [keras.layers.Dense(size, name=name) for name, size in sizes.items()]
    model = keras.Sequential([keras.Input((6,)), *layers])
    small = km.compress(model, km.Quantize("int4", exclude=("first", "last"))).model
    plain = km.dequantize(small)
    plain.layers[1].trainable = False
    x = np.random.default_rng(1).normal(size=(32, 6)).astype("float32")
    losses = []
    for one in (small, plain):
        one.layers[1].trainable = False
        one.compile("sgd", "mse")
        history = one.fit(x, x[:, :2], epochs=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    kernels = [to_numpy(one.get_layer("first").kernel) for one in (small, plain)]
    np.testing.assert_allclose(*kernels, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float32"])
def test_what_lora_adds_is_merged_into_the_floats(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model, layer, x = coded("into heads", "int8", lora=True)
        assert layer.compute_dtype == policy.removeprefix("mixed_")
        merged = km.dequantize(model)
    finally:
        keras.config.set_dtype_policy("float32")
    close = 1e-5 if policy == "float32" else 0.1
    seen, expected = (values(m(x)).astype("float32") for m in (model, merged))
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(seen, expected, atol=close)
