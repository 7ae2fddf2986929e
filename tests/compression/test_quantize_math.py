"""The laws of int8."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kerasmem.compression.quantize.math import dequantize, quantize
from kerasmem.errors import ModelError

FINITE = st.floats(-(2.0**90), 2.0**90, width=32)
WEIGHTS = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=FINITE
)


def axes_of(weights, last_is_channel):
    return tuple(range(weights.ndim - 1)) if last_is_channel else (weights.ndim - 1,)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(WEIGHTS, st.booleans())
def test_no_entry_is_off_by_more_than_half_a_scale(weights, last_is_channel):
    codes, scales = quantize(weights, axes_of(weights, last_is_channel))
    exact = codes.astype(np.float64) * scales.astype(np.float64)
    slack = 1e-6 * np.abs(weights)  # the scale itself is rounded to float32
    assert (np.abs(exact - weights) <= scales / 2 + slack).all()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS, st.booleans())
def test_quantizing_what_was_quantized_changes_nothing(weights, last_is_channel):
    axes = axes_of(weights, last_is_channel)
    codes, scales = quantize(weights, axes)
    again, _ = quantize(dequantize(codes, scales), axes)
    # Denormal numbers have too few bits to divide by 127 and come back.
    normal = np.broadcast_to(scales > 1e-35, codes.shape)
    np.testing.assert_array_equal(again[normal], codes[normal])


@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS)
def test_zero_stays_zero_and_the_largest_of_a_channel_gets_the_largest_code(weights):
    codes, scales = quantize(weights, axes_of(weights, last_is_channel=True))
    assert (codes[weights == 0] == 0).all()
    largest = np.abs(weights).max(axis=tuple(range(weights.ndim - 1)))
    top = np.abs(codes.astype(int)).max(axis=tuple(range(weights.ndim - 1)))
    assert (top[largest > 1e-30] == 127).all()
    assert (scales > 0).all()
    assert codes.min() >= -127


def test_a_channel_of_zeros_is_exact():
    weights = np.array([[0.0, 2.0], [0.0, -4.0]], np.float32)
    np.testing.assert_array_equal(dequantize(*quantize(weights, (0,)))[:, 0], [0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(bad):
    with pytest.raises(ModelError, match=r"NaN or infinity .* 1 such entries of 4"):
        quantize(np.array([[1.0, bad], [0.0, 2.0]]), (0,))
