"""The laws of masks: selection, patterns, scores, allocation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kerasmem.compression.prune import CRITERIA, pattern_name
from kerasmem.compression.prune.plan import erdos_renyi
from kerasmem.compression.prune.scores import (
    Blocks,
    NOfM,
    Unstructured,
    exchange,
    keep_largest,
    parse_pattern,
    removed_count,
    scores,
)
from kerasmem.errors import ConfigError

pytestmark = pytest.mark.one_backend

# Few different values, so that ties are the rule.
WEIGHTS = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=1, max_dims=3, max_side=8),
    elements=st.one_of(
        st.sampled_from([0.0, 1.0, -1.0, 2.0]), st.floats(-9, 9, width=32)
    ),
)
SPARSITY = st.floats(0, 0.999)
PATTERNS = st.sampled_from(
    [Unstructured(), NOfM(2, 4), NOfM(1, 3), Blocks((2,)), Blocks((2, 3), largest=True)]
)
law = settings(derandomize=True, max_examples=100, deadline=None)


def mask_of(weights, sparsity, pattern=None):
    if pattern is None:
        pattern = Unstructured()
    if pattern.why_not(weights.shape):
        pattern = Unstructured()
    return pattern.masks(scores("magnitude", [weights]), sparsity, [0])[0]


@law
@given(WEIGHTS, SPARSITY)
def test_a_mask_removes_exactly_the_share_asked_for_and_no_larger_entry(weights, share):
    mask = mask_of(weights, share)
    removed = np.count_nonzero(~mask)
    # The share itself is rounded: 0.29 of 100 are 29, not 28.
    assert math.floor(share * weights.size) <= removed <= share * weights.size + 1e-9
    if removed > 0:
        assert np.abs(weights[~mask]).max() <= np.abs(weights[mask]).min()


def test_a_share_that_is_a_rounding_below_a_whole_number_is_that_number():
    assert 0.29 * 100 < 29
    assert removed_count(100, 0.29) == 29
    assert removed_count(5, 1 - 2**-53) == 4  # never all


@law
@given(WEIGHTS, SPARSITY, PATTERNS)
def test_pruning_what_was_pruned_changes_nothing(weights, share, pattern):
    once = weights * mask_of(weights, share, pattern)
    np.testing.assert_array_equal(once * mask_of(once, share, pattern), once)


@law
@given(WEIGHTS, SPARSITY, SPARSITY, PATTERNS)
def test_a_higher_sparsity_removes_what_a_lower_one_does(weights, a, b, pattern):
    low, high = sorted((a, b))
    assert not (mask_of(weights, high, pattern) & ~mask_of(weights, low, pattern)).any()


@law
@given(st.lists(WEIGHTS, min_size=1, max_size=4), SPARSITY)
def test_ranked_together_the_share_of_all_is_removed(weights, share):
    together = scores("magnitude/rms", weights)
    masks = Unstructured().masks(together, share, [0] * len(weights))
    size = sum(w.size for w in weights)
    assert sum(np.count_nonzero(~m) for m in masks) == removed_count(size, share)
    assert [m.shape for m in masks] == [w.shape for w in weights]


def test_the_scale_of_an_array_does_not_decide_what_is_ranked_over_its_rms():
    random = np.random.default_rng(0)
    weights = [random.normal(size=(30, 30)), random.normal(size=(30, 30))]
    scaled = [weights[0], 1000 * weights[1]]
    plain, same = (
        Unstructured().masks(scores("magnitude/rms", each), 0.7, [0, 0])
        for each in (weights, scaled)
    )
    np.testing.assert_array_equal(plain, same)
    raw = Unstructured().masks(scores("magnitude", scaled), 0.5, [0, 0])
    assert raw[0].sum() < 10 < 890 < raw[1].sum()


def test_the_smallest_numbers_have_a_score_too():
    (found,) = scores("magnitude/rms", [np.array([1e-45, 0, 0, 0], "float32")])
    assert found.tolist() == [2, 0, 0, 0]


def test_nan_is_kept_rather_than_hidden():
    mask = mask_of(np.array([np.nan, 1.0, 2.0, 3.0]), 0.5)
    assert mask.tolist() == [True, False, False, True]


def test_tied_weights_are_removed_to_the_target_exactly():
    weights = np.repeat(np.arange(4.0), 25)
    for share in (0.3, 0.6, 0.75):
        assert (~mask_of(weights, share)).mean() == share


@law
@given(
    arrays.arrays(
        np.float32,
        st.tuples(*[st.integers(1, 9)] * 3),
        elements=st.floats(-9, 9, width=32),
    ),
    st.integers(0, 2),
    st.sampled_from([(1, 2), (2, 4), (1, 4), (3, 5)]),
)
def test_of_every_group_n_of_m_stay_and_they_are_the_largest(weights, axis, n_of_m):
    kept, group = n_of_m
    pattern = NOfM(kept, group)
    mask = pattern.masks(
        [np.abs(weights)], 1 - pattern.nonzero / pattern.group, [axis]
    )[0]
    rows = np.moveaxis(np.abs(weights), axis, -1).reshape(-1, weights.shape[axis])
    masks = np.moveaxis(mask, axis, -1).reshape(rows.shape)
    for start in range(0, rows.shape[1], group):
        some, stays = rows[:, start : start + group], masks[:, start : start + group]
        assert (stays.sum(1) == min(kept, some.shape[1])).all()
        for values, keep in zip(some, stays, strict=True):
            if not keep.all():
                assert values[~keep].max() <= values[keep].min()


def test_blocks_stay_or_go_as_one_also_at_the_edges():
    weights = np.array([[1.0, 1, 9, 0, 3], [1, 1, 0, 0, 3], [5, 5, 0, 0, 7]])
    mean = Blocks((2, 2)).masks([weights], 0.5, [0])[0]
    # Means: 1, 2.25, 3 in the first row of blocks, 5, 0, 7 in the second.
    expected = [[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [1, 1, 0, 0, 1]]
    assert mean.astype(int).tolist() == expected
    largest = Blocks((2, 2), largest=True).masks([weights], 0.5, [0])[0]
    expected = [[0, 0, 1, 1, 0], [0, 0, 1, 1, 0], [1, 1, 0, 0, 1]]
    assert largest.astype(int).tolist() == expected
    conv = np.arange(2 * 2 * 4.0).reshape(2, 2, 4)
    rows = Blocks((4,)).masks([conv], 0.5, [0])[0]
    assert rows.all(-1).tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize(
    ("given", "name"),
    [("2:4", "2:4"), ((4, 4), "4x4"), ([1, 8], "1x8"), ("max 2x2", "max 2x2")],
)
def test_patterns_have_names_that_go_to_text_and_back(given, name):
    assert pattern_name(given) == name
    assert pattern_name(name) == name
    parse_pattern(name)


@pytest.mark.parametrize("given", ["4:4", "0:4", "1x1", "blocks", 4, (0, 3), None])
def test_other_patterns_are_errors(given):
    with pytest.raises(
        ConfigError, match="Invalid pattern of Prune. .* Received: pattern="
    ):
        pattern_name(given)


def test_each_criterion_has_its_formula():
    weights = [np.array([[1.0, -2.0], [3.0, -4.0]], "float32")]
    known = [np.array([[1.0], [10.0]], "float32")]
    assert scores("wanda", weights, known)[0].tolist() == [[1, 2], [30, 40]]
    for name in ("taylor", "movement"):
        assert scores(name, weights, weights)[0] is weights[0]
    first, again, other = (
        scores("random", weights, seed=seed)[0].tolist() for seed in (1, 1, 2)
    )
    assert first == again != other
    assert set(CRITERIA) == {
        "magnitude",
        "magnitude/rms",
        "taylor",
        "movement",
        "wanda",
        "random",
    }


@law
@given(
    st.lists(st.tuples(*[st.integers(1, 40)] * 2), min_size=1, max_size=5),
    st.floats(0.05, 0.95),
)
def test_erdos_renyi_keeps_as_much_in_all_and_in_proportion(shapes, sparsity):
    found = np.array(erdos_renyi(shapes, sparsity, kernel=False))
    sizes = np.array([a * b for a, b in shapes])
    assert (found * sizes).sum() == pytest.approx(sparsity * sizes.sum())
    assert (found >= 0).all()
    assert (found < 1).all()
    density = (1 - found) * sizes / [a + b for a, b in shapes]
    assert density[found > 0] == pytest.approx(density[found > 0].max(initial=0))


def test_erdos_renyi_of_kernels_counts_their_height_and_width():
    shapes = [(3, 3, 8, 16), (1, 1, 64, 64)]
    plain = erdos_renyi(shapes, 0.8, kernel=False)
    kernel = erdos_renyi(shapes, 0.8, kernel=True)
    ratio = (1 - np.array(kernel)[0]) / (1 - np.array(kernel)[1])
    assert ratio == pytest.approx(30 / 1152 / (130 / 4096))
    ratio = (1 - plain[0]) / (1 - plain[1])
    assert ratio == pytest.approx(24 / 128 / (128 / 4096))


@law
@given(WEIGHTS, st.floats(0, 1), st.floats(0.1, 0.9))
def test_an_exchange_changes_places_and_not_the_number(weights, fraction, sparsity):
    mask = keep_largest(np.abs(weights), removed_count(weights.size, sparsity))
    gradient = np.random.default_rng(0).normal(size=weights.shape)
    changed = exchange(mask, np.abs(weights), gradient, fraction)
    assert changed.sum() == mask.sum()
    come, gone = changed & ~mask, mask & ~changed
    wanted = min(int(fraction * mask.sum()), (~mask).sum())
    assert come.sum() == gone.sum() == wanted
    if come.any() and (~mask & ~changed).any():
        refused = np.abs(gradient[~mask & ~changed]).max()
        assert np.abs(gradient[come]).min() >= refused
    if gone.any() and (mask & changed).any():
        assert np.abs(weights[gone]).max() <= np.abs(weights[mask & changed]).min()


def test_a_block_larger_than_a_weight_is_the_weight():
    weights = np.arange(12.0).reshape(3, 4)
    huge, whole = Blocks((10**9, 10**9)), Blocks((3, 4))
    for sparsity in (0.0, 0.5, 0.9):
        np.testing.assert_array_equal(
            huge.masks([weights, weights + 1], sparsity, [0, 0]),
            whole.masks([weights, weights + 1], sparsity, [0, 0]),
        )
