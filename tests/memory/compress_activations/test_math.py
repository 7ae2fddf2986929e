"""Eight bits an activation: the laws of the rounding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from kerasmem.memory.compress_activations.store import (
    GROUP,
    NOISE_LEVELS,
    grouping,
    packed_bytes,
)
from tests.memory.compress_activations.reference import pack, unpack

pytestmark = pytest.mark.one_backend

FLOATS = st.floats(-(2.0**99), 2.0**99, width=32)
TENSORS = arrays(np.float32, array_shapes(min_dims=1, max_dims=4), elements=FLOATS)
FEW = settings(derandomize=True, max_examples=60, deadline=None)


def noise_for(values, seed=0):
    groups = grouping(values.shape)
    shape = (*values.shape[: groups.leading], groups.count, groups.length)
    parts = np.random.default_rng(seed).integers(0, NOISE_LEVELS, shape)
    return ((parts + 0.5) / NOISE_LEVELS).astype("float32")


def rounded(values, seed=0):
    return unpack(pack(values, noise_for(values, seed)), values.shape)


def scales_of(values):
    """Return the scale of every entry, in float64: an independent formula."""
    groups = grouping(values.shape)
    rows = values.reshape(*values.shape[: groups.leading], -1).astype(np.float64)
    result = np.empty_like(rows)
    for start in range(0, groups.entries, groups.length):
        part = rows[..., start : start + groups.length]
        spread = part.max(-1, keepdims=True) - part.min(-1, keepdims=True)
        largest = np.abs(part).max(-1, keepdims=True)
        result[..., start : start + groups.length] = np.maximum.reduce(
            [spread / 251, largest * 2.0**-20, np.full_like(spread, 2.0**-120)]
        )
    return result.reshape(values.shape)


@FEW
@given(TENSORS)
def test_no_entry_is_off_by_more_than_its_scale(values):
    error = np.abs(rounded(values).astype(np.float64) - values)
    assert (error <= scales_of(values) * 1.001).all()


@FEW
@given(TENSORS, st.integers(0, 5))
def test_zeros_are_exact(values, seed):
    values = np.where(np.arange(values.size).reshape(values.shape) % 3, values, 0)
    assert (rounded(values.astype("float32"), seed)[values == 0] == 0).all()


@FEW
@given(st.floats(-(2.0**99), 2.0**99, width=32), array_shapes(min_dims=2, max_dims=3))
def test_a_group_of_one_value_is_exact(value, shape):
    # Below 2**-100 a value is within 2**-120, not exact.
    value = np.float32(value if abs(value) > 2.0**-100 else 0)
    values = np.full(shape, value, "float32")
    np.testing.assert_array_equal(rounded(values), values)


@FEW
@given(
    TENSORS,
    st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), min_size=1, max_size=5),
)
def test_what_is_not_finite_comes_back_and_the_rest_is_rounded_as_ever(values, odd):
    values = values.copy()
    values.reshape(-1)[: len(odd)] = odd[: values.size]
    found = rounded(values)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(found[~finite], values[~finite])
    known = np.where(finite, values, np.float32(0))
    error = np.abs(np.where(finite, found, 0).astype(np.float64) - known)
    assert (error <= scales_of(known) * 1.001).all()


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 1), (5, 6), (-1e6, 1e-3)])
def test_the_mean_of_many_roundings_is_the_value(low, high):
    random = np.random.default_rng(0)
    values = random.uniform(low, high, (1, 200)).astype("float32")
    draws = 4000
    many = np.repeat(values, draws, axis=0)
    bias = rounded(many, seed=1).astype(np.float64).mean(0) - values[0]
    # An error lies within one scale, so its deviation is at most half a scale.
    scale = (values.max() - values.min()) / 251
    assert np.abs(bias).max() < 5 * 0.5 * scale / np.sqrt(draws)
    assert abs(bias.mean()) < 5 * 0.5 * scale / np.sqrt(draws * values.size)


def test_a_group_lies_in_one_sample_and_takes_a_last_one_that_is_shorter():
    groups = grouping((None, 7, 111))
    assert (groups.leading, groups.entries) == (1, 777)
    assert (groups.count, groups.length, groups.padding) == (4, 195, 3)
    assert grouping((None, None, 300)).leading == 2
    assert grouping((8, GROUP)).count == 1


@FEW
@given(TENSORS)
def test_packed_bytes_are_those_of_the_arrays(values):
    packed = pack(values, noise_for(values))
    arrays = (packed.codes, packed.scales, packed.zeros)
    assert packed_bytes(values.shape) == sum(array.nbytes for array in arrays)
    assert packed.codes.dtype == np.uint8
