"""The codec on the running backend, against the reference in NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from kerasmem.memory.compress_activations import store
from kerasmem.memory.compress_activations.store import rounding_noise
from tests.memory.compress_activations import reference

SHAPES = [(4, 40), (3, 7, 111), (2, 16, 16, 8), (1, 1000)]


def values_of(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def to_numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def round_trip(values, dtype="float32", seed=0):
    groups = store.grouping(values.shape)
    packed = store.pack(ops.convert_to_tensor(values, dtype=dtype), groups, seed)
    return to_numpy(store.unpack(packed, groups, values.shape, dtype))


def grouped(values):
    groups = store.grouping(values.shape)
    rows = values.reshape(len(values), groups.entries)
    rows = np.pad(rows, ((0, 0), (0, groups.padding)), mode="edge")
    return rows.reshape(len(values), groups.count, groups.length)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_codec_does_what_the_reference_does(shape):
    values, groups = values_of(shape), store.grouping(shape)
    packed = store.pack(ops.convert_to_tensor(values), groups, 3)
    codes, scales, zeros = map(ops.convert_to_numpy, packed)
    noise = rounding_noise(ops.convert_to_tensor(grouped(values)), 3)
    expected = reference.pack(values, ops.convert_to_numpy(noise))
    assert codes.dtype == np.uint8
    assert codes.shape == expected.codes.shape
    np.testing.assert_allclose(scales, expected.scales, rtol=1e-6)
    np.testing.assert_array_equal(zeros, expected.zeros)
    # Compilers may divide and add in another way, which one code in many can notice.
    different = codes.astype(int) - expected.codes
    assert np.abs(different).max() <= 1
    assert (different != 0).mean() < 2e-3
    np.testing.assert_allclose(
        to_numpy(store.unpack(packed, groups, shape, "float32")),
        reference.unpack(reference.Packed(codes, scales, zeros), shape),
        rtol=1e-6,
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_come_back_in_their_own_type(dtype):
    values = to_numpy(ops.cast(values_of((4, 300)), dtype))
    error = np.abs(round_trip(values, dtype) - values)
    scale = (values.max() - values.min()) / 251
    assert error.max() <= scale + 0.01 * np.abs(values).max()


def test_the_largest_half_precision_float_does_not_become_infinite():
    values = np.full((8, 64), 65504.0, "float32")
    values[:, ::2] = -60000.0
    assert np.isfinite(round_trip(values, "float16")).all()


def test_zeros_and_what_is_not_finite_come_back():
    values = np.maximum(values_of((6, 500)), 0)
    values[2, :3] = [np.inf, -np.inf, np.nan]
    found = round_trip(values)
    np.testing.assert_array_equal(found[values == 0], 0)
    np.testing.assert_array_equal(found[2, :3], values[2, :3])
    assert np.isfinite(found).sum() == values.size - 3


def test_the_mean_over_seeds_is_the_value():
    values, draws = values_of((2, 64)), 200
    mean = np.mean([round_trip(values, seed=seed) for seed in range(draws)], axis=0)
    scale = (values.max(1) - values.min(1)).max() / 251
    assert np.abs(mean - values).max() < 5 * 0.5 * scale / np.sqrt(draws)


def test_equal_samples_of_a_batch_are_rounded_differently_and_right_on_average():
    sample, copies = values_of((1, 256)), 2000
    found = round_trip(np.repeat(sample, copies, axis=0))
    scale = (sample.max() - sample.min()) / 251
    assert len(np.unique(found[:, 0])) == 2
    assert np.abs(found.mean(0) - sample).max() < 5 * 0.5 * scale / np.sqrt(copies)


def test_noise_is_even_and_no_two_entries_go_together():
    tensor, draws = ops.convert_to_tensor(values_of((2, 3, 8))), 1000
    noise = np.array(
        [ops.convert_to_numpy(rounding_noise(tensor, seed)) for seed in range(draws)]
    ).reshape(draws, -1)
    assert noise.min() > 0
    assert noise.max() < 1
    shares = np.histogram(noise, 8, (0, 1))[0] / noise.size
    assert np.abs(shares * 8 - 1).max() < 0.05
    together = np.corrcoef(noise, rowvar=False) - np.eye(noise.shape[1])
    assert np.abs(together).max() < 5 / np.sqrt(draws)


def test_noise_repeats_for_the_same_batch_and_changes_with_any_other():
    values = values_of((4, 300))
    other = values.copy()
    other[0, 0] += 0.01
    again, changed = round_trip(values), round_trip(other)
    np.testing.assert_array_equal(round_trip(values), again)
    assert (changed[1:] != again[1:]).mean() > 0.05


def test_no_random_numbers_of_keras_are_drawn():
    keras.utils.set_random_seed(1)
    expected = to_numpy(keras.random.uniform((4,)))
    keras.utils.set_random_seed(1)
    round_trip(values_of((4, 300)))
    np.testing.assert_array_equal(to_numpy(keras.random.uniform((4,))), expected)
