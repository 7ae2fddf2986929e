"""Ranges of activations, against NumPy on activations that are all kept."""

from collections import defaultdict

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasmem.compression.quantize import Calibration
from kerasmem.compression.quantize.activations import (
    BINS,
    Histogram,
    best_range,
    calibrate,
    divergence,
    squared_error,
)
from kerasmem.errors import ConfigError, DataError, KerasMemWarning, ModelError
from kerasmem.graph.flat_calls import flatten
from kerasmem.records import ActivationRange
from tests.models import KINDS, chain

L = keras.layers
parts = st.lists(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30),
    min_size=1,
    max_size=6,
)


def filled(values, pieces=8):
    histogram = Histogram()
    for piece in np.array_split(values, pieces):
        histogram.add(piece)
    return histogram


def gaps(count=64):
    """Samples with a few values far from all others."""
    random = np.random.default_rng(4)
    x = random.normal(size=(count, 6, 6, 2)).astype("float32")
    x[::9, 0, 0, 0] *= 8
    return x


def net():
    """A shared layer, a nested model called twice, an operator, two branches."""
    inner = keras.Sequential(
        [keras.Input((6, 6, 4)), L.Conv2D(4, 3, padding="same"), L.ReLU()], name="inner"
    )
    inputs = keras.Input((6, 6, 2), name="picture")
    shared = L.Conv2D(4, 1, name="shared")
    x = L.Conv2D(2, 1, name="first")(shared(inputs))
    x = shared(x)
    x = inner(inner(x)) + x
    return keras.Model(
        inputs, [L.GlobalAveragePooling2D(name="mean")(x), L.Flatten()(x)]
    )


def kept(model, x, size):
    """Return all activations by name, batch by batch: what calibration must not do."""
    found = defaultdict(list)
    for start in range(0, len(x), size):
        tensor = keras.ops.convert_to_tensor(x[start : start + size])
        flatten(model).run(
            [tensor],
            lambda name, t: found[name].append(keras.ops.convert_to_numpy(t)),
        )
    return found


@given(parts)
def test_no_value_is_lost_and_none_is_further_than_a_bin_from_its_place(pieces):
    histogram = Histogram()
    for piece in pieces:
        histogram.add(np.array(piece))
    values = np.sort(np.concatenate([np.array(piece) for piece in pieces]))
    assert histogram.total == len(values)
    assert (histogram.least, histogram.most) == (values[0], values[-1])
    assert histogram.low <= values[0] <= values[-1] <= histogram.high
    counted = np.repeat(histogram.centers, histogram.counts)
    assert np.abs(counted - values).max() <= 1.001 * histogram.width


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=99),
    st.floats(0.001, 0.999),
)
def test_a_quantile_is_that_of_numpy_to_a_bin(values, share):
    histogram = filled(np.array(values), pieces=1)
    # Between two values NumPy has a choice, and a share may be one in rounding only.
    shares = np.clip([share - 1e-9, share + 1e-9], 0, 1)
    low, high = np.quantile(values, shares, method="inverted_cdf")
    room = 1.001 * histogram.width
    assert low - room <= histogram.quantile(share) <= high + room


def test_a_wide_quantile_of_many_values_is_that_of_numpy():
    values = np.random.default_rng(0).normal(size=50_000)
    histogram = filled(values)
    for share in (0.001, 0.3, 0.5, 0.99, 0.9999):
        exact = np.quantile(values, share)
        assert histogram.quantile(share) == pytest.approx(exact, abs=0.02)


def test_a_histogram_takes_as_much_memory_for_many_values_as_for_few():
    few, many = (
        filled(np.ones(1), 1),
        filled(np.random.default_rng(0).normal(size=9999)),
    )
    assert few.counts.nbytes == many.counts.nbytes == 8 * BINS


@pytest.mark.parametrize("skewed", [False, True])
def test_the_least_squared_error_is_that_of_a_search_on_the_values_themselves(skewed):
    random = np.random.default_rng(1)
    values = np.append(random.uniform(-1, 1, 200_000), [1.4])
    values = np.abs(values) if skewed else values
    low, high = best_range(filled(values), squared_error)

    def error(low, high):
        scale = (high - low) / 255
        zero = np.rint(-low / scale)
        codes = np.clip(np.rint(values / scale) + zero, 0, 255)
        return np.square(values - scale * (codes - zero)).sum()

    grid = [
        (min(values.min() * a, 0.0), values.max() * b)
        for a in np.linspace(0.5, 1, 15)
        for b in np.linspace(0.5, 1, 15)
    ]
    least = min(error(*ends) for ends in grid)
    assert error(low, high) <= 1.03 * least
    assert error(low, high) < 0.85 * error(min(values.min(), 0.0), values.max())


def test_the_divergence_is_that_of_a_loop():
    random = np.random.default_rng(2)
    centers = np.linspace(-1, 3, 900)
    counts = random.integers(1, 50, 900).astype(float)
    low, high = -0.99, 2.98
    inside = [i for i, c in enumerate(centers) if low <= c <= high]
    p = {i: counts[i] for i in inside}
    p[inside[0]] += sum(counts[i] for i, c in enumerate(centers) if c < low)
    p[inside[-1]] += sum(counts[i] for i, c in enumerate(centers) if c > high)
    level = {
        i: min(int((centers[i] - low) / ((high - low) / 256)), 255) for i in inside
    }
    total, kept_total = sum(p.values()), sum(counts[i] for i in inside)
    expected = 0.0
    for i in inside:
        group = [j for j in inside if level[j] == level[i]]
        q = sum(counts[j] for j in group) / len(group) / kept_total
        expected += p[i] / total * np.log(p[i] / total / q)
    assert divergence(centers, counts, low, high) == pytest.approx(expected)


def test_entropy_gives_up_what_is_rare_and_far_away():
    random = np.random.default_rng(1)
    values = np.concatenate([random.normal(size=50_000), [40.0, -40.0]])
    low, high = best_range(filled(values), divergence)
    assert -20 < low < -2
    assert 2 < high < 20


BEFORE_RELU = {
    "normal": lambda random, size: random.normal(size=size),
    "rarely positive": lambda random, size: random.normal(-1, size=size),
    "heavy tails": lambda random, size: random.laplace(size=size),
    "black pixels": lambda random, size: random.uniform(-3, 1, size),
}


@pytest.mark.parametrize("name", BEFORE_RELU)
def test_entropy_is_not_led_astray_by_the_zeros_of_a_relu(name):
    values = np.maximum(BEFORE_RELU[name](np.random.default_rng(1), 50_000), 0)
    low, high = best_range(filled(values), divergence)
    assert low == 0
    assert high > 0.6 * values.max()


def test_entropy_is_not_led_astray_by_few_values():
    random = np.random.default_rng(1)
    for _ in range(20):
        logits = random.normal(random.normal(size=5), 0.1, (64, 5))
        low, high = best_range(filled(logits), divergence)
        assert ((logits >= low) & (logits <= high)).mean() >= 0.98


@pytest.mark.parametrize("cost", [squared_error, divergence])
@pytest.mark.parametrize("value", [0.0, 2.5, -1e-3])
def test_the_range_of_a_constant_has_it_in_it(value, cost):
    low, high = best_range(filled(np.full(9, value)), cost)
    assert low <= value <= high
    assert high - low == pytest.approx(abs(value) or 1.0)


@pytest.mark.parametrize("method", ["min-max", "moving-average", "percentile"])
def test_ranges_are_those_of_numpy_on_activations_that_are_kept(method):
    model, x = net(), gaps()
    choice = Calibration(method, batch_size=16, percentile=99.0, decay=0.8)
    ranges = calibrate(model, x, choice)
    expected = kept(model, x, 16)
    assert [each.tensor for each in ranges] == list(expected)
    for each in ranges:
        batches = expected[each.tensor]
        values = np.concatenate([batch.ravel() for batch in batches])
        assert each.values == values.size
        ends, room = (values.min(), values.max()), 0.0
        if method == "moving-average":
            ends = batches[0].min(), batches[0].max()
            for batch in batches[1:]:
                pair = zip(ends, (batch.min(), batch.max()), strict=True)
                ends = [0.8 * a + 0.2 * b for a, b in pair]
        if method == "percentile":
            ends = np.quantile(values, [0.01, 0.99], method="inverted_cdf")
            room = 4 * float(np.ptp(values)) / BINS
        assert each.low == pytest.approx(min(ends[0], 0), abs=room + 1e-6)
        assert each.high == pytest.approx(max(ends[1], 0), abs=room + 1e-6)
        assert (each.least, each.most) == (values.min(), values.max())


@pytest.mark.parametrize("method", ["mse", "entropy"])
def test_a_searched_range_is_within_what_was_seen(method):
    for each in calibrate(net(), gaps(), Calibration(method)):
        assert min(each.least, 0) <= each.low <= 0 <= each.high <= max(each.most, 0)


def test_every_call_of_a_shared_layer_and_of_a_nested_model_has_its_own_range():
    ranges = {each.tensor: each for each in calibrate(net(), gaps())}
    assert {"picture", "shared", "shared:1", "mean"} <= set(ranges)
    inner = [name for name in ranges if name.startswith("inner")]
    assert len(inner) == 4
    assert sum(name.startswith("inner:1/") for name in inner) == 2
    assert ranges["shared"].most != ranges["shared:1"].most


@pytest.mark.parametrize("kind", ["attention", "recurrent", "time_distributed"])
def test_the_walk_gives_what_the_model_gives(kind):
    model, x = KINDS[kind].make(), KINDS[kind].inputs()
    tensors = []
    flatten(model).run([keras.ops.convert_to_tensor(x)], lambda _, t: tensors.append(t))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(tensors[-1]),
        keras.ops.convert_to_numpy(model(x)),
        rtol=1e-5,
        atol=1e-6,
    )


def test_dropout_and_normalization_are_those_of_inference():
    model = chain((5,), L.Dropout(0.9), L.BatchNormalization())
    x = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
    taken, dropped, _ = calibrate(model, x)
    assert (taken.least, taken.most) == (dropped.least, dropped.most)
    assert not np.any(keras.ops.convert_to_numpy(model.layers[-1].moving_mean))


def test_augmentation_is_skipped_as_in_inference():
    """Its `training` is True by default, and `predict` sets it to False."""
    augmentation = L.RandomRotation(0.5, seed=1), L.RandomContrast(0.9, seed=1)
    x = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype("float32")
    found = calibrate(chain((8, 8, 1), *augmentation, L.Flatten()), x)
    ends = {(each.low, each.high) for each in found}
    assert ends == {(float(x.min()), float(x.max()))}


def test_batched_data_is_read_until_there_are_enough_samples():
    class Batches(keras.utils.PyDataset):
        read = 0

        def __len__(self):
            return 9

        def __getitem__(self, index):
            self.read = max(self.read, index)
            return np.full((16, 3), index, "float32"), np.zeros(16)

    batches = Batches()
    (first, *_) = calibrate(chain((3,), L.ReLU()), batches, Calibration(samples=40))
    assert (first.values, first.most, batches.read) == (120, 2.0, 2)


@given(st.floats(-50, 0), st.floats(0.01, 50))
def test_zero_is_a_code_and_the_range_fits_into_the_codes(low, high):
    one = ActivationRange("x", low, high, low, high, 1)
    assert -128 <= one.zero_point <= 127
    lowest, highest = (one.scale * (code - one.zero_point) for code in (-128, 127))
    assert abs(lowest - low) <= 0.51 * one.scale
    assert abs(highest - high) <= 0.51 * one.scale


def test_what_may_mislead_is_said():
    model = chain((4,), L.Dense(3), L.ReLU())
    with pytest.warns(KerasMemWarning, match="there are 5 samples, at least 32"):
        calibrate(model, np.random.default_rng(0).normal(size=(5, 4)))
    with pytest.warns(
        KerasMemWarning, match="inaccurate: there is 1 sample, at least 32"
    ):
        calibrate(model, np.random.default_rng(0).normal(size=(1, 4)))
    with pytest.warns(KerasMemWarning, match="all 40 samples are equal"):
        calibrate(model, np.ones((40, 4)))
    silent = chain((4,), L.Rescaling(0.0, name="silent"))
    with pytest.warns(
        KerasMemWarning, match="1 of 2 activations are constant.*'silent'"
    ):
        ranges = calibrate(silent, np.random.default_rng(0).normal(size=(40, 4)))
    assert (ranges[1].low, ranges[1].high, ranges[1].is_constant) == (0.0, 1.0, True)


def test_bad_data_is_one_clear_error():
    model = chain((4,), L.Rescaling(1e38, name="large"), L.Rescaling(10, name="larger"))
    x = np.ones((40, 4), "float32")
    with pytest.raises(DataError, match="infinity in 128 of 128 values of 'larger'"):
        calibrate(model, 3 * x)
    x[3, 2] = np.nan
    with pytest.raises(DataError, match=f"1 of 128 values of '{model.inputs[0].name}'"):
        calibrate(model, x)
    with pytest.raises(DataError, match=r"shape \(40, 7\)"):
        calibrate(model, np.ones((40, 7)))
    with pytest.raises(ModelError, match="Received: a subclassed model"):
        calibrate(KINDS["subclassed"].make(), np.ones((40, 5)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"method": "median"},
            "`method` of Calibration must be one of .*'median'",
        ),
        ({"percentile": 50}, "above 50 and at most 100. Received: percentile=50"),
        (
            {"decay": 1.0},
            "at least 0 and less than 1. Received: decay=1.0",
        ),
        ({"samples": 0}, "samples=0"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_a_choice_checks_itself(arguments, text):
    with pytest.raises(ConfigError, match=text):
        Calibration(**arguments)
