"""Sizes that are no multiple of 8, of models where they can be read off."""

import keras
import pytest
from keras import layers

from kerasmem.extras.tune.retracing import odd_sizes
from kerasmem.records import OddSize

pytestmark = pytest.mark.one_backend


def test_each_odd_size_is_told_with_the_next_even_one():
    model = keras.Sequential(
        [
            keras.Input((13,), name="table"),
            layers.Dense(24, name="fits"),
            layers.Dense(30, name="hidden"),
            layers.Dense(12, name="in_tf32"),
            layers.Dense(1, name="out"),
        ]
    )
    assert odd_sizes(model, 20) == (
        OddSize("", "batch size", 20, 24, 20),
        OddSize("table", "features", 13, 16, 16),
        OddSize("hidden", "units", 30, 32, 32),
        OddSize("in_tf32", "units", 12, 16, 12),
        OddSize("out", "units", 1, 8, 4),
    )
    assert odd_sizes(keras.Sequential([keras.Input((8,)), layers.Dense(8)]), 8) == ()


def test_kernels_of_every_kind_are_looked_at_once():
    images = keras.Input((8, 8, 3), name="images")
    x = layers.Conv2D(12, 3, groups=3, name="grouped")(images)
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.SeparableConv2D(9, 1, name="separable")(x)
    x = layers.Reshape((16, 9))(x)
    zeros = {"kernel_initializer": "zeros"}  # quick to make
    lstm = layers.LSTM(
        20, return_sequences=True, recurrent_initializer="zeros", **zeros
    )
    attention = layers.MultiHeadAttention(2, 6, **zeros)
    x = lstm(x)
    x = attention(x, x)
    model = keras.Model(images, x)
    found = {(odd.layer, odd.dimension): odd.size for odd in odd_sizes(model, 16)}
    assert found == {
        ("grouped", "filters a group"): 4,
        ("separable", "filters"): 9,
        (f"{lstm.name}/lstm_cell", "units"): 20,
        (f"{attention.name}/query", "last axis of the kernel"): 6,
        (f"{attention.name}/key", "last axis of the kernel"): 6,
        (f"{attention.name}/value", "last axis of the kernel"): 6,
        (f"{attention.name}/attention_output", "last axis of the kernel"): 20,
    }
