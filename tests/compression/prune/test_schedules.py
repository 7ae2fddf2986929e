"""Schedules: their values, their places, their errors."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.compression.prune import (
    Constant,
    Cosine,
    Iterative,
    Polynomial,
    RigL,
    Splicing,
)
from kerasmem.compression.prune.schedules import SCHEDULES, schedule_from_json
from kerasmem.errors import ConfigError

pytestmark = pytest.mark.one_backend

RISING = [Polynomial(), Cosine(), Iterative(), Splicing(end=0.5)]
law = settings(derandomize=True, max_examples=100, deadline=None)


@pytest.mark.parametrize(
    ("place", "expected"), [(0, 0), (0.25, 0.7), (0.5, 0.8), (1, 0.8)]
)
def test_the_cubic_schedule_has_the_values_of_the_paper(place, expected):
    assert Polynomial().sparsity(place, 0.8) == pytest.approx(expected)


def test_a_cosine_is_half_a_wave():
    schedule = Cosine(begin=2, end=10, unit="epoch", initial=0.2)
    for place in range(2, 11):
        expected = 0.8 - 0.6 * (1 + math.cos(math.pi * (place - 2) / 8)) / 2
        assert schedule.sparsity(place, 0.8) == pytest.approx(expected)


def test_a_round_removes_the_same_share_of_what_is_left():
    schedule = Iterative(rounds=4, begin=1, end=7, unit="epoch")
    assert [schedule.latest(e) for e in range(9)] == [None, 1, 1, 3, 3, 5, 5, 7, 7]
    left = [1 - schedule.sparsity(place, 0.9) for place in (1, 3, 5, 7)]
    for before, after in zip([1.0, *left], left, strict=False):
        assert after / before == pytest.approx(0.1**0.25)
    assert Iterative(rounds=1, begin=0.3, end=0.3).sparsity(0.3, 0.9) == 0.9


@law
@given(st.sampled_from(RISING), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.99))
def test_sparsity_rises_to_its_end_and_no_further(schedule, a, b, final):
    low, high = sorted((a, b))
    assert schedule.sparsity(low, final) <= schedule.sparsity(high, final) + 1e-12
    assert schedule.sparsity(0.5, final) == schedule.sparsity(1, final) == final


@law
@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 20), st.integers(0, 150))
def test_turns_are_evenly_spaced_and_the_end_is_one(begin, span, every, step):
    schedule = Cosine(begin=begin, end=begin + span, every=every, unit="step")
    turns = {*range(begin, begin + span, every), begin + span}
    expected = max((turn for turn in turns if turn <= step), default=None)
    assert schedule.latest(step) == expected
    assert schedule.due(expected, step) is None


def test_what_is_due_is_told_once():
    schedule = Polynomial(begin=10, end=20, every=5, unit="step")
    assert [schedule.due(None, s) for s in (9, 10, 14)] == [None, 10, 10]
    assert schedule.due(10, 14) is None
    assert schedule.due(10, 26) == 20


@pytest.mark.parametrize("kind", SCHEDULES.values())
def test_every_schedule_goes_to_plain_data_and_back(kind):
    schedule = kind(begin=2, end=9, unit="epoch")
    assert schedule_from_json(schedule.to_json()) == schedule
    with pytest.raises(AttributeError):
        schedule.begin = 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Polynomial(begin=0.6, end=0.5), "begin=0.6, end=0.5"),
        (lambda: Cosine(end=1.1), "0 <= begin <= end <= 1. Rec"),
        (lambda: Cosine(begin=-1, unit="step"), "0 <= begin <= end. Rec"),
        (lambda: Constant(unit="batch"), "share, step, epoch. Received: unit='batch'"),
        (lambda: Constant(every=0), "above 0.* Received: every=0"),
        (lambda: Polynomial(initial=1), "Received: initial=1"),
        (lambda: Polynomial(power=0), "Received: power=0"),
        (lambda: Polynomial(end=None), "polynomial schedule needs an end.*end=None"),
        (lambda: Iterative(rounds=0), "Received: rounds=0"),
        (lambda: RigL(fraction=1.5), "Received: fraction=1.5"),
        (lambda: schedule_from_json({"schedule": "x"}), "Received: schedule='x'"),
        (
            lambda: schedule_from_json({"schedule": "cosin"}),
            r"'cosin'. Did you mean 'cosine'\?",
        ),
        (
            lambda: schedule_from_json({"schedule": "cosine", "x": 1}),
            "Unknown argument 'x' of 'cosine'",
        ),
    ],
)
def test_bad_arguments_are_errors(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_fewer_and_fewer_weights_change_places():
    schedule = RigL(end=1.0, fraction=0.4)
    assert schedule.exchanged(0) == pytest.approx(0.4)
    assert schedule.exchanged(0.5) == pytest.approx(0.2)
    assert schedule.exchanged(1) == pytest.approx(0)
