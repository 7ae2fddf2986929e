"""k-means along a line, against scikit-learn's and against its own laws."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans

from kerasmem.compression.cluster import STARTS, Cluster, apply
from kerasmem.compression.cluster.apply import (
    Line,
    centroids,
    line_of_bins,
    nearest,
    tables_of,
)
from kerasmem.files import threads

pytestmark = pytest.mark.one_backend

FLOATS = st.floats(-10, 10, width=32)
LINES = arrays(np.float32, st.integers(1, 60), elements=FLOATS)
RNG = np.random.default_rng


def few_values(values, count, axis=None, **options):
    return apply.few_values(values, Cluster(count, **options), axis)


def loss(values, found):
    return np.square(values - found[nearest(values, found)]).sum()


@settings(max_examples=60, deadline=None)
@given(LINES, st.integers(1, 8), st.sampled_from(STARTS))
def test_every_centroid_is_the_mean_of_what_is_nearest_to_it(values, count, start):
    found = centroids(Line.of(values), count, start, RNG(0))
    assert len(found) <= count
    assert (np.diff(found) >= 0).all()
    members = nearest(values, found)
    distances = np.abs(values[:, None].astype("float64") - found)
    np.testing.assert_allclose(
        distances[np.arange(len(values)), members], distances.min(axis=1), atol=1e-12
    )
    for place in np.unique(members):
        mean = values[members == place].astype("float64").mean()
        np.testing.assert_allclose(found[place], mean, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(LINES, st.sampled_from(STARTS))
def test_as_many_centroids_as_values_lose_nothing(values, start):
    found = centroids(Line.of(values), len(np.unique(values)), start, RNG(0))
    np.testing.assert_array_equal(found, np.unique(values))


@pytest.mark.parametrize("count", [4, 16])
def test_it_fits_as_well_as_scikit_learn_does(count):
    values = RNG(1).normal(size=3000).astype("float32")
    ours = loss(values, centroids(Line.of(values), count, "kmeans++", RNG(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = KMeans(count, n_init=1, random_state=0).fit(values[:, None]).inertia_
    assert ours < 1.05 * theirs


def test_from_one_start_it_ends_where_scikit_learn_does():
    values = RNG(2).normal(size=500)
    start = np.linspace(values.min(), values.max(), 6)
    theirs = KMeans(6, init=start[:, None], n_init=1, tol=0, max_iter=1000)
    theirs.fit(values[:, None])
    ours = centroids(Line.of(values), 6, "linear", RNG(0))
    np.testing.assert_allclose(
        ours, np.sort(theirs.cluster_centers_[:, 0]), rtol=1e-6, atol=1e-9
    )


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(
    SHAPES.flatmap(lambda shape: arrays(np.float32, shape, elements=FLOATS)),
    st.integers(2, 6),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_a_weight_has_few_values_and_zeros_stay(values, count, axis, zeros):
    values[np.abs(values) < 2] = 0
    decoded = few_values(values, count, axis, keep_zeros=zeros)
    assert decoded.shape == values.shape
    rows = [decoded] if axis is None else np.moveaxis(decoded, axis, 0)
    assert all(len(np.unique(row)) <= count for row in rows)
    if zeros:
        assert not decoded[values == 0].any()


def lloyd_with_zero(values, found):
    """Return where Lloyd's algorithm ends if a centroid of zero never moves."""
    while True:
        places = np.abs(values[:, None] - found).argmin(axis=1)
        moved = [
            values[places == place].mean() if centroid else 0.0
            for place, centroid in enumerate(found)
        ]
        if np.allclose(moved, found, rtol=0, atol=1e-12):
            return found
        found = np.array(moved)


@pytest.mark.parametrize(("count", "most"), [(4, 540), (8, 144), (16, 38)])
def test_the_other_values_make_room_for_a_zero_that_stays(count, most):
    values = RNG(0).normal(size=4000)
    values[0] = 0
    start = np.linspace(values.min(), values.max(), count - 1)
    expected = lloyd_with_zero(values, np.union1d(start, [0.0]))
    found = few_values(values, count, start="linear")
    np.testing.assert_allclose(np.unique(found), expected, atol=1e-9)
    best = few_values(values, count)
    assert np.square(values - best).sum() < most


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("start", STARTS)
def test_a_histogram_of_many_values_loses_next_to_nothing(dtype, start, monkeypatch):
    values = RNG(3).normal(size=20_000).astype(dtype)
    values[::7] = 0
    exact, binned = [
        few_values(values, 16, start=start)
        for piece in (1 << 20, 1 << 10)
        if monkeypatch.setattr(apply, "PIECE", piece) is None
    ]
    assert not binned[::7].any()
    exact, binned = exact.astype("float64"), binned.astype("float64")
    of_both = [np.square(values - each).sum() for each in (exact, binned)]
    assert of_both[1] < 1.001 * of_both[0]


def test_a_histogram_of_few_values_is_exact():
    values = RNG(4).choice(RNG(5).normal(size=9), 5000).astype("float32")
    tables = map(tables_of, np.split(values, 5))
    found = line_of_bins(*map(sum, zip(*tables, strict=True)))
    expected = Line.of(values)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.counts, expected.counts)


@pytest.mark.parametrize("shape", [(7, 30), (3, 5, 4), (2, 3, 4, 5)])
def test_channels_are_found_wherever_a_piece_is_cut(shape, monkeypatch):
    values = RNG(6).normal(size=shape)
    for axis in range(len(shape)):
        expected = few_values(values, 2, axis, granularity="channel")
        with monkeypatch.context() as patch:
            patch.setattr(threads, "PIECE", 8)
            found = few_values(values, 2, axis, granularity="channel")
        np.testing.assert_array_equal(found, expected)
        rows = (np.moveaxis(each, axis, 0) for each in (found, values))
        for one, other in zip(*rows, strict=True):
            row = centroids(Line.of(other), 2, "kmeans++", RNG(0))
            assert len(np.unique(one)) == len(row)
