"""Rounding to learned steps, against the formulas of the paper in NumPy."""

import keras
import numpy as np
import pytest

from kerasmem.compression.quantize.aware.rounding import LEAST, round_by_steps
from kerasmem.graph.values import to_numpy
from tests.compression.aware.gradient import gradient_of

FACTORS = np.random.default_rng(1).normal(size=(6, 3)).astype("float32")
X = np.array(
    [  # left of the codes, among them and right of them, in each column
        [-9.0, -0.3, 0.001],
        [-0.71, 0.2, -5.0],
        [-0.2, 0.1, 0.013],
        [0.34, 0.74, -0.002],
        [0.66, 0.7, 0.04],
        [4.0, 8.0, 3.0],
    ],
    "float32",
)


def paper(x, step, low, high):
    """Return the rounded values, their slopes for `x`, and for the step."""
    ratio = x.astype("float64") / step
    left, right = ratio <= low, ratio >= high
    whole = np.rint(ratio)
    inner = np.where(left, low, np.where(right, high, whole))
    slope = np.where(left, low, np.where(right, high, whole - ratio))
    return inner * step, (~left & ~right) * 1.0, slope


CASES = {
    "a step per channel": (np.array([[0.1, 0.11, 0.004]]), -7, 7, 6),
    "one step": (np.array([[0.05]]), -7, 7, 18),
    "one step of a batch": (np.array(0.02), 0, 255, 3),
    "codes on both sides": (np.array(0.02), -100, 155, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_paper(name):
    begin, low, high, entries = CASES[name]
    begin = begin.astype("float32")
    relative = np.full_like(begin, 1.5)

    def rounded(x, relative):
        x, relative = map(keras.ops.convert_to_tensor, (x, relative))
        step = keras.ops.convert_to_tensor(begin)
        found = round_by_steps(x, relative, step, low, high, entries)
        return keras.ops.multiply(found, FACTORS)

    values, of_x, of_step = paper(X, 1.5 * begin, low, high)
    np.testing.assert_allclose(
        to_numpy(rounded(X, relative)), FACTORS * values, rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(
        gradient_of(lambda x: rounded(x, relative), X), FACTORS * of_x, rtol=1e-6
    )
    shared = tuple(i for i in range(2) if begin.ndim == 0 or begin.shape[i] == 1)
    summed = (FACTORS * of_step).sum(shared).reshape(begin.shape)
    expected = summed / np.sqrt(entries * max(high, -low)) / begin
    found = gradient_of(lambda r: rounded(X, r), relative)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_step_never_vanishes():
    begin = keras.ops.convert_to_tensor(np.float32(1.0))
    for share in (0.0, -3.0):
        relative = keras.ops.convert_to_tensor(np.float32(share))
        x = keras.ops.convert_to_tensor(np.array([1.0, LEAST], "float32"))
        found = round_by_steps(x, relative, begin, -7, 7, 2)
        np.testing.assert_array_equal(to_numpy(found), [7 * LEAST, LEAST])


def test_where_nothing_but_zero_has_a_code_no_gradient_is_infinite():
    zero, one = (keras.ops.convert_to_tensor(np.float32(n)) for n in (0.0, 1.0))
    x = np.zeros(3, "float32")

    def rounded(relative):
        x, relative = map(keras.ops.convert_to_tensor, (X[0], relative))
        return round_by_steps(x, relative, one, zero, zero, 3)

    np.testing.assert_array_equal(to_numpy(rounded(np.float32(1))), x)
    assert float(gradient_of(rounded, np.float32(1))) == 0
