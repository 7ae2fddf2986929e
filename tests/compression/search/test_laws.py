"""Laws of the parts of a search, on numbers."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasmem.compression.search.significance import drop, split
from kerasmem.compression.search.target import COSTS, Target, cost_text, families
from kerasmem.errors import ConfigError, DataError
from kerasmem.records import SearchTrial
from kerasmem.stats.bisection import bisect

pytestmark = pytest.mark.one_backend

unit = st.floats(0, 1)


@given(unit, st.integers(1, 8))
def test_bisecting_ends_on_the_good_side_and_near_the_edge(edge, halvings):
    weakest = bisect(lambda x: x >= edge, 1.0, 0.0, halvings)
    assert edge <= weakest <= edge + 2.0**-halvings
    furthest = bisect(lambda x: x <= edge, 0.0, 1.0, halvings)
    assert edge - 2.0**-halvings <= furthest <= edge


@given(st.lists(st.booleans(), min_size=5, max_size=5), st.booleans())
def test_bisecting_returns_only_what_was_found_to_hold(answers, upward):
    asked = {}

    def holds(x):
        asked[x] = answers[len(asked)]
        return asked[x]

    good, bad = (0.0, 1.0) if upward else (1.0, 0.0)
    found = bisect(holds, good, bad, 5)
    assert len(asked) == 5
    assert found == good or asked[found]


@given(st.lists(unit, min_size=2, max_size=20), st.integers(1, 400), st.data())
def test_a_drop_is_paired(before, size, data):
    noise = st.floats(-0.1, 0.1)
    changes = data.draw(
        st.lists(noise, min_size=len(before), max_size=len(before)), "changes"
    )
    samples = size * len(before)
    old = [{"loss": 1.0, "accuracy": value} for value in before]
    new = [
        {"loss": 9.0, "accuracy": b - c} for b, c in zip(before, changes, strict=True)
    ]
    found = drop(old, new, samples, samples)
    assert found.mean == pytest.approx(statistics.fmean(changes), abs=1e-9)
    spread = np.std(changes, ddof=1) / math.sqrt(len(changes))
    expected = math.sqrt(2) * math.hypot(spread, 1 / samples)
    assert found.error == pytest.approx(expected, abs=1e-9)
    # More samples in the end make the drop there surer, never surer than here.
    assert drop(old, new, samples, 10**12).error == pytest.approx(
        expected / math.sqrt(2), rel=1e-3
    )


def test_a_loss_that_rises_is_a_drop_and_has_no_least_error():
    old, new = [{"loss": 1.0}] * 4, [{"loss": 1.5}] * 4
    found = drop(old, new, 8, None)
    assert (found.mean, found.error) == (0.5, 0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_a_drop_without_end(value):
    old, new = [{"loss": 1.0}] * 20, [{"loss": 1.0}] * 19 + [{"loss": value}]
    found = drop(old, new, 20, None)
    trial = SearchTrial("prune", (), 1, {}, 0.5, found.mean, found.error)
    assert trial.worst_drop == math.inf


def test_of_normal_differences_the_error_covers_what_other_samples_show():
    rng = np.random.default_rng(0)
    beyond = 0
    for _ in range(400):
        here, there = rng.normal(0.01, 0.02, (2, 20))
        old = [{"accuracy": 0.5}] * 20
        new = [{"accuracy": 0.5 - value} for value in here]
        found = drop(old, new, 10**9, 10**9)
        beyond += there.mean() > found.mean + 2.5 * found.error
    assert beyond <= 400 * 0.03


@given(st.dictionaries(st.sampled_from(COSTS), st.floats(1e-3, 1e12), min_size=1))
def test_a_target_is_over_by_its_worst_limit(limits):
    least = {name: 1.0 for name in COSTS if name.endswith("_bytes")}
    limits = {name: max(n, least.get(name, n)) for name, n in limits.items()}
    target = Target.of(limits)
    assert target.limits == limits
    assert target.over(limits) == 1
    assert target.costs == tuple(limits)
    for name in limits:
        assert target.over(limits | {name: 3 * limits[name]}) == pytest.approx(3)


def test_sizes_may_be_text():
    assert Target.of({"file_bytes": "2 KiB", "weight_bytes": 7}).limits == {
        "file_bytes": 2048.0,
        "weight_bytes": 7.0,
    }
    assert Target.of({"flops": np.int64(7)}).limits == {"flops": 7.0}
    assert cost_text("latency_ms", 1.25) == "latency_ms 1.25"
    assert cost_text("flops", 1234567) == "flops 1,234,567"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"file_byte": 1}, "target='file_byte'. Did you mean 'file_bytes'?"),
        ({"speed": 1}, "one of file_bytes, .* Received: target='speed'"),
        ({3: 1}, "one of file_bytes, .* Received: target=3"),
        ({"flops": 0}, "above 0. Received: flops=0"),
        (
            {"file_bytes": -1},
            'a text such as "200KiB", at least 1. Received: file_b',
        ),
        ({"weight_bytes": 0.2}, "at least 1. Received: weight_bytes=0.2"),
        ({"file_bytes": "0 B"}, "Received: file_bytes=0"),
        ({"file_bytes": "small"}, "must be a number of bytes, or a text"),
        ({"latency_ms": float("nan")}, "above 0. Received: latency_ms=nan"),
        ({"latency_ms": float("inf")}, "Received: latency_ms=inf"),
        ({"flops": "1e6"}, "Received: flops='1e6'"),
        ({"flops": True}, "Received: flops=True"),
        ({}, "must be a dict of limits"),
        (200_000, "must be a dict of limits"),
    ],
)
def test_a_target_that_cannot_be_is_one_clear_error(given, text):
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")):
        Target.of(given)


@given(st.integers(100, 2000), st.integers(1, 64), st.integers(0, 9))
def test_samples_are_trained_on_or_judged_by_and_never_both(count, batch_size, seed):
    x = np.arange(count)
    train, held = split((x, -x, 2 * x), batch_size, seed)
    judged = held.data[0]
    assert sorted([*train[0], *judged]) == list(x)
    assert len(judged) == held.samples <= count / 5
    assert held.samples % held.part == held.part % held.batch_size == 0
    assert held.samples // held.part == 20
    assert held.batch_size <= batch_size
    for one, two, three in (train, held.data):
        np.testing.assert_array_equal(one, -two)
        np.testing.assert_array_equal(three, 2 * one)
    again, _ = split((x, -x, 2 * x), batch_size, seed)
    np.testing.assert_array_equal(again[0], train[0])


def test_several_inputs_are_split_alike():
    x = {"a": np.arange(100), "b": -np.arange(100)}
    train, held = split((x, np.arange(100)), 8, 0)
    for inputs, y in (train, held.data):
        np.testing.assert_array_equal(inputs["a"], -inputs["b"])
        np.testing.assert_array_equal(inputs["a"], y)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (np.zeros(50), "needs labels to evaluate.*give data="),
        ((np.zeros(50),), "needs labels to evaluate its trials"),
        ((np.zeros(99), np.zeros(99)), "at least 100 samples. Received: 99"),
        (iter([]), "A search needs arrays"),
    ],
)
def test_samples_that_cannot_be_held_out_are_one_clear_error(data, text):
    with pytest.raises(DataError, match=text):
        split(data, 8, 0)


@pytest.mark.parametrize("cost", COSTS)
def test_more_strength_leaves_less(cost):
    for family in families([cost]):
        assert family.name
        told = [tuple(s.to_json() for s in family.at(k / 4)) for k in range(5)]
        assert (len({str(steps) for steps in told}) > 1) == family.has_strength
        assert all(steps.keys() for steps in told[4])
        for name in ("sparsity", "ratio"):
            values = [s.get(name) for steps in told[1:] for s in steps if name in s]
            assert values == sorted(values)
    channels = next(f for f in families([cost]) if f.name == "channels")
    measure = channels.at(1.0)[0].of
    assert measure == {
        "activation_bytes": "memory",
        "latency_ms": "multiplications",
        "flops": "multiplications",
    }.get(cost, "parameters")
