"""Models that users report Torch-Pruning to fail on, by the number of the issue."""

import keras
import pytest
from keras import ops

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.apply import prune_channels
from tests.graph.channels.strategies import L, randomize


def transposed_behind_a_view(x):
    x = L.Dense(4 * 4 * 6, activation="relu")(x)
    x = L.Conv2DTranspose(8, 3, strides=2)(L.Reshape((4, 4, 6))(x))
    return L.Conv2D(2, 1)(x)


def concatenated_with_itself(x):
    x = L.Conv2D(6, 3)(x)
    return L.Conv2D(2, 1)(ops.concatenate([x, x], axis=-1))


def one_channel_is_not_depthwise(x):
    x = L.Conv2D(1, 3, padding="same")(L.Conv2D(6, 3)(x))
    return L.Conv2D(2, 1)(L.Conv2D(8, 3)(x))


def tokens_of_patches(x):
    x = L.Conv2D(8, 2, strides=2)(x)
    x = L.Reshape((-1, 8))(x)
    x = x + L.Dense(8)(L.Dense(12, activation="gelu")(x))
    return L.Dense(2)(L.GlobalAveragePooling1D()(x))


def mobile_net_v3_block(x):
    x = L.Conv2D(6, 1)(x)
    y = L.DepthwiseConv2D(3, padding="same")(L.Conv2D(12, 1)(x))
    s = L.GlobalAveragePooling2D(keepdims=True)(y)
    s = L.Conv2D(12, 1)(L.Conv2D(4, 1, activation="relu")(s))
    y = y * (ops.relu6(s + 3.0) * (1.0 / 6.0))
    return L.Conv2D(2, 1)(L.Conv2D(6, 1)(y) + x)


def queries_keys_and_values_at_once(x):
    x = L.Dense(16)(L.Reshape((-1, 3))(x))
    every = ops.reshape(L.Dense(48)(x), (-1, 64, 3, 4, 4))
    every = ops.transpose(every, (2, 0, 3, 1, 4))
    scores = ops.matmul(every[0], ops.transpose(every[1], (0, 1, 3, 2)))
    y = ops.matmul(ops.softmax(scores), every[2])
    y = ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (-1, 64, 16))
    return L.Dense(2)(x + L.Dense(16)(y))


def flat_parts_side_by_side(x):
    x = L.GlobalAveragePooling2D()(x)
    x = L.Concatenate()([L.Dense(6)(x), L.Dense(10)(x)])
    return L.Dense(2)(L.Dense(8)(x))


def a_mask_over_all_channels(x):
    x = L.Conv2D(32, 3)(x)
    return L.Conv2D(2, 1)(x * L.Conv2D(1, 1, activation="sigmoid")(x))


HALVES = {
    # The parameters that are left with half of all channels, by hand. A kernel counts
    # kernel size x in x out, and out for the bias.
    125: (transposed_behind_a_view, (5, 4 * 4 * 3 * 6 + 9 * 3 * 4 + 4 + 4 * 2 + 2)),
    146: (concatenated_with_itself, (3, 27 * 3 + 3 + 6 * 2 + 2)),
    179: (one_channel_is_not_depthwise, (3, 84 + 27 + 1 + 9 * 4 + 4 + 8 + 2)),
    219: (tokens_of_patches, (3, 12 * 4 + 4 + 24 + 6 + 24 + 4 + 8 + 2)),
    328: (
        mobile_net_v3_block,
        (3, 9 + 3 + 18 + 6 + 54 + 6 + 12 + 2 + 12 + 6 + 18 + 3 + 6 + 2),
    ),
    393: (queries_keys_and_values_at_once, (3, 24 + 8 + 8 * 24 + 24 + 64 + 8 + 16 + 2)),
    481: (flat_parts_side_by_side, (3, 9 + 3 + 15 + 5 + 8 * 4 + 4 + 8 + 2)),
    510: (a_mask_over_all_channels, (3, 27 * 16 + 16 + 17 + 32 + 2)),
}


@pytest.mark.one_backend  # they are read as graphs, of which each has random ones
@pytest.mark.parametrize("issue", HALVES)
def test_half_of_the_channels_of_a_reported_model_go(issue):
    build, (channels, expected) = HALVES[issue]
    inputs = keras.Input((channels,) if issue == 125 else (8, 8, channels))
    model = keras.Model(inputs, build(inputs))
    randomize(model)
    found = prune_channels(model, PruneChannels(0.5))
    assert found.error <= 1e-5
    assert found.unknown == {}
    assert found.model.count_params() == expected
