"""A batch is cut into parts that make it up again, and count as much."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.backends.splitting import (
    axes_of,
    length_of,
    split,
    splittable_length,
    weights,
)
from kerasmem.errors import DataError


@pytest.mark.one_backend
@given(length=st.integers(1, 70), parts=st.integers(1, 70))
@settings(derandomize=True, max_examples=60, deadline=None)
def test_parts_are_the_batch_in_order_and_of_nearly_one_length(length, parts):
    parts = min(parts, length)
    batch = {"x": np.arange(length), "y": (np.arange(2 * length).reshape(-1, 2), None)}
    pieces = split(batch, parts)
    lengths = [length_of(piece) for piece in pieces]
    assert len(pieces) == parts
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
    np.testing.assert_array_equal(
        np.concatenate([piece["y"][0] for piece in pieces]), batch["y"][0]
    )
    assert all(piece["y"][1] is None for piece in pieces)


@pytest.mark.one_backend
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 50), st.floats(-5, 5)),
        min_size=1,
        max_size=8,
    )
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_shares_and_factors_make_the_mean_of_the_whole(parts):
    lengths, valid, means = zip(*parts, strict=True)
    counted = [np.array([v, np.nan, n]) for v, n in zip(valid, lengths, strict=True)]
    whole = np.zeros(3)
    for (share, factors), mean in zip(weights(lengths, counted), means, strict=True):
        whole += share * factors.astype("float64") * mean
    expected = [
        np.average(means, weights=valid),
        np.sum(means),
        np.average(means, weights=lengths),
    ]
    np.testing.assert_allclose(whole, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.one_backend
def test_arrays_of_different_lengths_are_refused_in_words():
    with pytest.raises(DataError, match=r"Expected: one length.*lengths \[3, 4\]"):
        split((np.zeros((4, 2)), np.zeros(3)), 2)


def test_a_scalar_in_a_batch_is_refused_in_words():
    with pytest.raises(DataError, match=r"lengths \[0, 4\]"):
        length_of((keras.ops.zeros((4, 2)), np.float32(1)))


@pytest.mark.one_backend
def test_what_cannot_be_split_counts_as_one_sample():
    assert splittable_length((np.zeros((4, 2)), np.zeros(3))) == 1
    assert splittable_length({"x": np.zeros((0, 2))}) == 1
    assert splittable_length((np.zeros((4, 2)), None)) == 4
    assert axes_of((np.zeros((4, 2)), None, np.zeros(3))) == (4, 2, 3)
