"""What holds for every model: more never takes less."""

import functools

import keras
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

import kerasmem as km
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend

HOW = st.sampled_from(
    [("tensorflow", False), ("tensorflow", True), ("jax", True), ("torch", False)]
)
KINDS = st.sampled_from(["dense", "convolution", "attention", "recurrent"])


@functools.cache
def model(kind):
    if kind == "dense":
        inputs = keras.Input((24,))
        x = layers.Dropout(0.1)(layers.Dense(48, activation="gelu")(inputs))
        return keras.Model(inputs, layers.Dense(3)(layers.LayerNormalization()(x)))
    if kind == "convolution":
        inputs = keras.Input((12, 12, 3))
        x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([x, layers.SeparableConv2D(8, 3, padding="same")(x)])
        x = layers.Flatten()(layers.MaxPooling2D()(x))
        return keras.Model(inputs, layers.Dense(3)(x))
    inputs = keras.Input((10,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    if kind == "attention":
        x = x + layers.MultiHeadAttention(2, 8)(x, x)
        return keras.Model(inputs, layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Bidirectional(layers.LSTM(8))(x))


def estimate(kind, batch_size, how, **options):
    backend, jit = how
    options = {"optimizer": "adam", "method": "analytic"} | options
    return km.estimate_memory(
        model(kind), batch_size, backend=backend, jit_compile=jit, **options
    )


law = settings(max_examples=12, deadline=None, derandomize=True)


@law
@given(KINDS, HOW, st.integers(1, 300), st.integers(0, 300))
def test_a_larger_batch_never_takes_less(kind, how, batch_size, more):
    small, large = (estimate(kind, n, how) for n in (batch_size, batch_size + more))
    assert small.peak_bytes <= large.peak_bytes
    assert small.high_bytes <= large.high_bytes


@law
@given(KINDS, HOW, st.integers(1, 300))
def test_training_never_takes_less_than_predict(kind, how, batch_size):
    training = estimate(kind, batch_size, how)
    predict = estimate(kind, batch_size, how, training=False)
    assert predict.peak_bytes <= training.peak_bytes


@law
@given(KINDS, HOW, st.integers(1, 300))
def test_adam_never_takes_less_than_plain_descent(kind, how, batch_size):
    adam, sgd = (estimate(kind, batch_size, how, optimizer=o) for o in ("adam", "sgd"))
    assert sgd.peak_bytes <= adam.peak_bytes


@law
@given(KINDS, HOW, st.integers(1, 300), st.sampled_from(["gpu", "cpu"]))
def test_the_interval_holds_the_figure_and_no_less_than_the_variables(
    kind, how, batch_size, device
):
    found = estimate(kind, batch_size, how, device=device)
    stored = found.by_category()
    variables = stored["parameter"] + stored["optimizer_state"]
    assert variables <= found.low_bytes <= found.peak_bytes <= found.high_bytes
    assert found.first_step_low_bytes <= found.first_step_bytes
    assert found.first_step_bytes <= found.first_step_high_bytes


def blocks(number):
    """Return a net of blocks that each add to what went in, and normalize first."""
    inputs = x = keras.Input((1024,))
    for _ in range(number):
        y = keras.layers.LayerNormalization()(x)
        x = keras.layers.Add()([x, keras.layers.Dense(1024)(y)])
    return keras.Model(inputs, keras.layers.Dense(1)(x))


@pytest.mark.one_backend
def test_compiled_inference_takes_no_more_for_more_blocks():
    moving = []
    for number in (8, 32):
        found = km.estimate_memory(
            blocks(number), 4096, training=False, jit_compile=True, method="analytic"
        )
        sizes = found.by_category()
        moving.append(sizes["temporary"])
        # That of one call of cuBLAS, as XLA plans it, and none a layer.
        assert sizes["workspace"] == 4 * MIB
    # The sum so far, what is normalized, and what comes of it.
    assert moving[0] == moving[1] <= 5 * 4096 * 1024 * 4
