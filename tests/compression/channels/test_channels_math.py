"""Which channels go: counts, scores and ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.compression.channels.ranking import (
    distances,
    per_label,
    removable,
    shared_out,
    smallest,
)
from kerasmem.graph.channels.labels import components

few = settings(max_examples=40, derandomize=True)


@few
@given(st.integers(1, 200), st.floats(0, 0.99), st.integers(1, 16), st.integers(1, 300))
def test_what_stays_is_a_multiple_and_never_too_few(size, ratio, round_to, least):
    stay = size - removable(size, ratio, round_to, least)
    assert stay == size or (stay % round_to == 0 and stay >= least)
    assert stay >= size - np.floor(ratio * size)
    assert 1 <= stay <= size


@few
@given(st.integers(0, 2**32 - 1))
def test_scores_are_sums_over_all_entries_of_a_label(seed):
    random = np.random.default_rng(seed)
    values = random.normal(size=(3, 4, 5))
    labels = random.integers(0, 6, (1, 4, 1))
    expected = np.zeros(6)
    for place, value in np.ndenumerate(values):
        expected[labels[0, place[1], 0]] += value
    np.testing.assert_allclose(per_label(values, labels, 6), expected, atol=1e-12)


def test_distances_are_those_of_slices_to_each_other():
    values = np.random.default_rng(0).normal(size=(2, 5, 3))
    rows = [values[:, i].ravel() for i in range(5)]
    expected = [sum(np.linalg.norm(a - b) for b in rows) for a in rows]
    np.testing.assert_allclose(distances(values, 1), expected, rtol=1e-6)


def test_ties_go_in_order():
    assert smallest(np.array([1.0, 0.0, 0.0, 0.0]), 2).tolist() == [1, 2]


def test_ranked_together_a_group_of_equals_loses_less_than_one_with_weak_channels():
    equal, uneven = np.ones(8), np.array([0.01] * 4 + [2.0] * 4)
    assert shared_out([equal, uneven], 0.25, 1, 1) == [0, 4]
    assert sum(shared_out([equal, uneven], 0.25, 3, 1)) <= 4


@pytest.mark.parametrize("seed", range(5))
def test_components_are_those_of_a_search(seed):
    random = np.random.default_rng(seed)
    edges = random.integers(0, 30, (20, 2))
    found = components(30, edges[:, 0], edges[:, 1])
    expected = np.arange(30)
    for _ in range(30):
        for a, b in edges:
            expected[[a, b]] = expected[[a, b]].min()
    np.testing.assert_array_equal(found, expected)
