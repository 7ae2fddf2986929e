"""A sustained rise is found with its slope; noise, warming up and sawteeth are not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.callbacks.leak_watch import WARM_UP, WINDOWS, sustained_rise

pytestmark = pytest.mark.one_backend

SMALLEST = min(WINDOWS)
seeds = st.integers(0, 10**6)
law = settings(max_examples=20, derandomize=True, deadline=None)


def found_at(values, least=1.0):
    """Return the rises found after each value, as a monitor would look."""
    looks = (sustained_rise(values[: n + 1], least) for n in range(len(values)))
    return [rise for rise in looks if rise]


@law
@given(seeds, st.floats(1, 1e6), st.integers(12, 60))
def test_noise_about_a_level_is_no_rise(seed, noise, epochs):
    values = 1e7 + noise * np.random.default_rng(seed).normal(size=epochs)
    assert found_at(list(values), least=noise / 100) == []


@law
@given(st.floats(1, 1e6), st.floats(0.3, 3), st.floats(0, 0.02), seeds)
def test_a_rise_that_wears_off_is_no_leak(height, epochs_to_wear_off, noise, seed):
    epochs = np.arange(40)
    warming = height * (1 - np.exp(-epochs / epochs_to_wear_off))
    noises = noise * height * np.random.default_rng(seed).normal(size=40)
    assert found_at(list(warming + noises), least=height / 1000) == []


@law
@given(st.integers(2, SMALLEST - 1), st.integers(0, 7), st.floats(1, 1e6))
def test_a_sawtooth_is_no_leak(period, phase, height):
    teeth = height * ((np.arange(80) + phase) % period)
    assert found_at(list(teeth), least=height / 100) == []


@law
@given(st.integers(SMALLEST, 30), st.floats(1, 1e6))
def test_a_long_sawtooth_is_no_leak_once_a_tooth_was_seen(period, height):
    teeth = height * (np.arange(4 * period) % period)
    looks = range(period, 4 * period)
    rises = [sustained_rise(list(teeth[: n + 1]), height / 100) for n in looks]
    assert rises == [None] * (3 * period)


@law
@given(st.integers(1, 30), st.floats(1, 1e6))
def test_a_step_is_no_leak(at, height):
    values = height * (np.arange(40) >= at)
    assert found_at(list(values), least=height / 100) == []


@law
@given(seeds, st.floats(2, 1e6), st.integers(0, 25), st.floats(0, 0.5))
def test_a_steady_leak_is_found_with_its_slope_and_its_begin(seed, slope, begin, noise):
    # Noise of up to half an epoch's growth, from one end to the other.
    epochs = np.arange(begin + WARM_UP + 34)
    leak = slope * np.maximum(epochs - begin, 0)
    noises = slope * noise * np.random.default_rng(seed).uniform(-0.5, 0.5, len(epochs))
    values = list(5e5 * slope + leak + noises)

    rise = sustained_rise(values, least=slope / 2)
    first = found_at(values, least=slope / 2)[0]

    assert rise.slope == pytest.approx(slope, rel=0.1)
    assert first.slope == pytest.approx(slope, rel=0.1)
    assert begin - 1 <= first.since <= begin + WARM_UP


@pytest.mark.parametrize("epochs", [SMALLEST + WARM_UP - 1, SMALLEST + WARM_UP])
def test_a_leak_is_told_after_the_warm_up_and_the_smallest_window(epochs):
    rises = found_at([4.0 * epoch for epoch in range(epochs)])
    expected = [(4.0, WARM_UP)] if epochs == SMALLEST + WARM_UP else []
    assert rises == expected


def test_a_rise_below_what_is_of_interest_is_none():
    values = [float(epoch) for epoch in range(20)]
    assert sustained_rise(values, least=1.01) is None
    assert sustained_rise(values, least=0.99).slope == 1


def test_memory_that_was_higher_before_does_not_leak():
    values = [9.0, 9.0, 100.0, *map(float, range(20))]
    assert sustained_rise(values, least=0.1) is None
