"""The laws of masks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kerasmem.compression.prune.math import (
    cubic_sparsity,
    global_masks,
    magnitude_mask,
)

# Few different values, so that ties are the rule.
WEIGHTS = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=1, max_dims=3, max_side=8),
    elements=st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 2.0]), st.floats(-9, 9, width=32)
    ),
)
SPARSITY = st.floats(0, 1, exclude_max=True)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(WEIGHTS, SPARSITY)
def test_a_mask_removes_exactly_the_share_asked_for(weights, sparsity):
    mask = magnitude_mask(weights, sparsity)
    assert mask.shape == weights.shape
    assert np.count_nonzero(~mask) == math.floor(sparsity * weights.size)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(WEIGHTS, SPARSITY)
def test_nothing_that_is_removed_is_larger_than_what_is_kept(weights, sparsity):
    mask = magnitude_mask(weights, sparsity)
    if mask.all() or not mask.any():
        return
    assert np.abs(weights[~mask]).max() <= np.abs(weights[mask]).min()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS, SPARSITY)
def test_pruning_what_was_pruned_changes_nothing(weights, sparsity):
    once = weights * magnitude_mask(weights, sparsity)
    np.testing.assert_array_equal(once * magnitude_mask(once, sparsity), once)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS, SPARSITY, SPARSITY)
def test_a_higher_sparsity_removes_what_a_lower_one_does(weights, a, b):
    low, high = sorted((a, b))
    assert not (magnitude_mask(weights, high) & ~magnitude_mask(weights, low)).any()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(WEIGHTS, min_size=1, max_size=4), SPARSITY)
def test_global_masks_remove_the_share_of_all_together(weights, sparsity):
    masks = global_masks(weights, sparsity)
    removed = sum(np.count_nonzero(~mask) for mask in masks)
    assert removed == math.floor(sparsity * sum(w.size for w in weights))
    assert [m.shape for m in masks] == [w.shape for w in weights]


def test_the_scale_of_an_array_does_not_decide_its_global_mask():
    random = np.random.default_rng(0)
    weights = [random.normal(size=(30, 30)), random.normal(size=(30, 30))]
    scaled = [weights[0], 1000 * weights[1]]
    for plain, same in zip(
        global_masks(weights, 0.7), global_masks(scaled, 0.7), strict=True
    ):
        np.testing.assert_array_equal(plain, same)


def test_nan_is_kept_rather_than_hidden():
    mask = magnitude_mask(np.array([np.nan, 1.0, 2.0, 3.0]), 0.5)
    assert mask.tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("progress", "expected"), [(0, 0), (0.5, 0.7), (1, 0.8), (7, 0.8)]
)
def test_the_cubic_schedule_has_the_values_of_the_paper(progress, expected):
    assert cubic_sparsity(progress, 0.8) == pytest.approx(expected)
