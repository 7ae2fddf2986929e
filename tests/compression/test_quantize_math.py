"""The laws of int8."""

import keras
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kerasmem.compression.account import sqnr_db
from kerasmem.compression.quantize.coding import BITS, Coding
from kerasmem.compression.quantize.math import (
    dequantize,
    pack_int3,
    pack_int4,
    packed_length,
    quantize,
    quantize_affine,
    quantize_closely,
    short_scales,
)
from kerasmem.compression.quantize.rows import Rows, unpack_int3, unpack_int4
from kerasmem.errors import ModelError
from kerasmem.graph.values import to_numpy

FINITE = st.floats(-(2.0**90), 2.0**90, width=32)
WEIGHTS = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=FINITE
)


def axes_of(weights, last_is_channel):
    return tuple(range(weights.ndim - 1)) if last_is_channel else (weights.ndim - 1,)


@pytest.mark.one_backend
@settings(derandomize=True, max_examples=150, deadline=None)
@given(WEIGHTS, st.booleans(), st.sampled_from([3, 4, 8]))
def test_no_entry_is_off_by_more_than_half_a_scale(weights, last_is_channel, bits):
    codes, scales = quantize(weights, axes_of(weights, last_is_channel), bits)
    exact = codes.astype(np.float64) * scales.astype(np.float64)
    slack = 1e-6 * np.abs(weights)  # the scale itself is rounded to float32
    assert (np.abs(exact - weights) <= scales / 2 + slack).all()


@pytest.mark.one_backend
@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS, st.booleans())
def test_quantizing_what_was_quantized_changes_nothing(weights, last_is_channel):
    axes = axes_of(weights, last_is_channel)
    codes, scales = quantize(weights, axes)
    again, _ = quantize(dequantize(codes, scales), axes)
    # Denormal numbers have too few bits to divide by 127 and come back.
    normal = np.broadcast_to(scales > 1e-35, codes.shape)
    np.testing.assert_array_equal(again[normal], codes[normal])


@pytest.mark.one_backend
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


@pytest.mark.one_backend
def test_a_channel_of_zeros_is_exact():
    weights = np.array([[0.0, 2.0], [0.0, -4.0]], np.float32)
    np.testing.assert_array_equal(dequantize(*quantize(weights, (0,)))[:, 0], [0, 0])


@pytest.mark.one_backend
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(bad):
    with pytest.raises(ModelError, match=r"NaN or infinity in 1 of 4 entries"):
        quantize(np.array([[1.0, bad], [0.0, 2.0]]), (0,))


@pytest.mark.one_backend
@settings(derandomize=True, max_examples=150, deadline=None)
@given(WEIGHTS, st.booleans(), st.sampled_from([3, 4, 8]))
def test_affine_codes_are_as_close_and_keep_zero(weights, last_is_channel, bits):
    axes = axes_of(weights, last_is_channel)
    codes, scales, zeros = quantize_affine(weights, axes, bits)
    steps = codes.astype(np.float64) - zeros
    exact = steps * scales.astype(np.float64)
    slack = 1e-6 * np.abs(weights).max(axis=axes, keepdims=True, initial=0)
    assert (np.abs(exact - weights) <= scales / 2 + slack).all()
    assert (exact[weights == 0] == 0).all()
    assert np.abs(codes + 0.5).max(initial=0) <= 2 ** (bits - 1) - 0.5


def squared_errors(weights, parts, axes):
    codes, scales, *zeros = (part.astype(np.float64) for part in parts)
    exact = (codes - (zeros[0] if zeros else 0)) * scales
    return np.square(exact - weights).sum(axis=axes, keepdims=True)


@pytest.mark.one_backend
@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS, st.booleans(), st.sampled_from([3, 4, 8]), st.booleans())
def test_close_codes_err_no_more_than_those_of_the_largest_entries(
    weights, last_is_channel, bits, symmetric
):
    axes = axes_of(weights, last_is_channel)
    plain = (quantize if symmetric else quantize_affine)(weights, axes, bits)
    close = quantize_closely(weights, axes, bits, symmetric=symmetric)
    assert [p.dtype for p in close] == [p.dtype for p in plain]
    assert [p.shape for p in close] == [p.shape for p in plain]
    before, after = (squared_errors(weights, p, axes) for p in (plain, close))
    assert (after <= before * (1 + 1e-4) + 1e-12).all()
    assert (close[1] > 0).all()


@pytest.mark.one_backend
@pytest.mark.parametrize(("symmetric", "most"), [(True, 0.93), (False, 0.97)])
def test_close_codes_are_those_of_the_best_scale(symmetric, most):
    """Of a normal distribution four bits lose a tenth or a twentieth less."""
    weights = np.random.default_rng(0).normal(size=(64, 128))
    found = quantize_closely(weights, (1,), 4, symmetric=symmetric)
    errors = []
    for share in np.linspace(1, 0.6, 9):
        if symmetric:
            scale = np.abs(weights).max(1, keepdims=True) * share / 7
            exact = np.clip(np.rint(weights / scale), -7, 7) * scale
        else:
            low, high = (f(weights, 1, keepdims=True) * share for f in (np.min, np.max))
            scale = (high - low) / 15
            zero = np.rint(-8 - low / scale)
            exact = (np.clip(np.rint(weights / scale) + zero, -8, 7) - zero) * scale
        errors.append(np.square(exact - weights).sum(1))
    best = np.min(errors, axis=0)
    if symmetric:
        share = np.linspace(1, 0.6, 9)[np.argmin(errors, axis=0)][:, None]
        scale = np.abs(weights).max(1, keepdims=True) * share / 7
        codes = np.clip(np.rint(weights / scale), -7, 7)
        scale = [w @ c / (c @ c) for w, c in zip(weights, codes, strict=True)]
        scale = np.array(scale)[:, None]
        exact = np.clip(np.rint(weights / scale), -7, 7) * scale
        assert (np.square(exact - weights).sum(1) < best).mean() > 0.5
        best = np.minimum(best, np.square(exact - weights).sum(1))
    own = squared_errors(weights, found, (1,))[:, 0]
    np.testing.assert_allclose(own, best, rtol=1e-3)
    assert np.sqrt(best.sum() / errors[0].sum()) < most


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    arrays.arrays(
        np.int8,
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=5),
        elements=st.integers(-8, 7),
    ),
    st.data(),
)
def test_int4_codes_come_back_from_their_bytes_which_are_those_of_keras(codes, data):
    axis = data.draw(st.integers(0, codes.ndim - 1))
    packed = pack_int4(codes, axis)
    theirs, *_ = keras.quantizers.pack_int4(codes, axis=axis)
    np.testing.assert_array_equal(packed, to_numpy(theirs))
    tensor = keras.ops.convert_to_tensor(packed)
    back = to_numpy(unpack_int4(tensor, axis, codes.shape[axis]))
    np.testing.assert_array_equal(back, codes)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    arrays.arrays(
        np.int8,
        arrays.array_shapes(min_dims=1, max_dims=3, max_side=19),
        elements=st.integers(-4, 3),
    ),
    st.data(),
)
def test_int3_codes_come_back_from_three_bytes_for_every_eight(codes, data):
    axis = data.draw(st.integers(0, codes.ndim - 1))
    packed = pack_int3(codes, axis)
    assert packed.shape[axis] == packed_length(codes.shape[axis], 3)
    # As one number with three bits for each code.
    column = np.moveaxis(codes, axis, -1).reshape(-1, codes.shape[axis])[0]
    number = sum((int(code) & 7) << (3 * n) for n, code in enumerate(column))
    own = np.moveaxis(packed, axis, -1).reshape(-1, packed.shape[axis])[0]
    assert int.from_bytes(own.tobytes(), "little") == number
    tensor = keras.ops.convert_to_tensor(packed)
    back = to_numpy(unpack_int3(tensor, axis, codes.shape[axis]))
    np.testing.assert_array_equal(back, codes)


@pytest.mark.one_backend
@settings(derandomize=True, max_examples=150, deadline=None)
@given(WEIGHTS, st.data(), st.integers(2, 9))
def test_a_layout_in_groups_loses_nothing(weights, data, size):
    every = list(range(weights.ndim))
    axes = sorted(data.draw(st.sets(st.sampled_from(every), min_size=1)))
    rows = Rows(weights.shape, tuple(axes), size)
    stored = rows.store(weights, np)
    assert stored.shape == rows.stored_shape
    assert stored.shape[rows.axis] <= size
    np.testing.assert_array_equal(rows.restore(stored, np), weights)
    assert stored.size - weights.size < rows.groups * weights.size
    for axis in set(every) - set(axes):
        assert stored.shape[rows.stored_axis(axis)] == weights.shape[axis]


def test_rounded_weights_are_those_of_keras_fake_quantization():
    weights = np.random.default_rng(0).normal(size=(40, 30)).astype("float32")
    codes, scales = quantize(weights, (0,))
    limits = np.abs(weights).max(axis=0)
    theirs = keras.quantizers.fake_quant_with_min_max_vars(
        weights, -limits, limits, num_bits=8, narrow_range=True, axis=1
    )
    np.testing.assert_allclose(dequantize(codes, scales), to_numpy(theirs), atol=1e-6)
    same, _ = keras.quantizers.abs_max_quantize(weights, axis=0, to_numpy=True)
    assert (np.asarray(same) == codes).mean() > 0.999


def test_affine_weights_are_those_of_keras_fake_quantization():
    weights = np.random.default_rng(0).uniform(-1, 3, (40, 30)).astype("float32")
    rounded = dequantize(*quantize_affine(weights, (0,)))
    theirs = keras.quantizers.fake_quant_with_min_max_vars(
        weights, weights.min(0), weights.max(0), num_bits=8, axis=1
    )
    apart = np.abs(rounded - to_numpy(theirs))
    # They move the ends of the range, and so where exactly halves are rounded to.
    assert np.median(apart) < 1e-6
    assert apart.max() < 4 / 255 + 1e-6


@pytest.mark.parametrize("granularity", ["channel", "tensor", "group"])
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize(("shape", "axes"), [((5, 3), (0,)), ((3, 2, 7, 4), (0, 2))])
def test_what_is_stored_is_known_before_it_is_there(shape, axes, dtype, granularity):
    kinds = [(True, "float32"), (False, "float32"), (True, "bfloat16")]
    for symmetric, scale_dtype in kinds:
        coding = Coding(dtype, axes, granularity, 4, symmetric, scale_dtype=scale_dtype)
        stored = coding.stored(shape)
        coded = coding.encode(np.ones(shape, "float32"))
        assert [(part.shape, part.dtype.name) for part in coded.parts] == [
            *stored.parts
        ]


@pytest.mark.one_backend
@given(
    arrays.arrays(np.float32, st.integers(1, 9), elements=st.floats(1e-30, 1e30)),
)
def test_short_scales_are_the_next_larger_numbers_of_16_bits(exact):
    short = short_scales(exact)
    np.testing.assert_array_equal(short.astype(ml_dtypes.bfloat16), short)
    assert (short >= exact).all()
    below = np.nextafter(short.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16(0))
    assert (below < exact).all()


@pytest.mark.one_backend
@settings(derandomize=True, max_examples=100, deadline=None)
@given(WEIGHTS, st.sampled_from(["int3", "int4", "int8"]), st.booleans())
def test_codes_of_short_scales_are_as_close(weights, dtype, symmetric):
    axes = axes_of(weights, last_is_channel=True)
    shape = (dtype, axes, "group", 3, symmetric)
    coding = Coding(*shape, scale_dtype="bfloat16")
    coded = coding.encode(weights)
    exact = coding.decoded(coded, weights.shape)
    steps = coding.steps(weights, coded)
    largest = np.abs(weights).max(initial=0)
    assert (np.abs(exact - weights) <= steps / 2 + 1e-6 * largest).all()
    wide = Coding(*shape).steps(weights)
    normal = wide > 1e-35
    assert (steps[normal] <= wide[normal] * (1 + 2**-7)).all()
    assert (exact[weights == 0] == 0).all()


@pytest.mark.one_backend
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_are_those_of_plain_arithmetic_to_the_bit(bits, dtype):
    values = np.random.default_rng(bits).normal(size=(300, 7)).astype(dtype)
    before = values.copy()
    exact, limit = values.astype(np.float32), 127 >> (8 - bits)
    scales = np.abs(exact).max(0, keepdims=True) * np.float32(1 / limit)
    plain = np.clip(np.rint(exact * (1 / scales)), -limit, limit).astype(np.int8)
    codes, found = quantize(values, (0,), bits)
    np.testing.assert_array_equal(found, scales)
    np.testing.assert_array_equal(codes, plain)
    least, most = -limit - 1, limit
    low, high = exact.min(0, keepdims=True), exact.max(0, keepdims=True)
    scales = (high - low) * np.float32(1 / (most - least))
    zeros = np.clip(np.rint(least - low * (1 / scales)), least, most)
    plain = np.clip(np.rint(exact * (1 / scales)) + zeros, least, most).astype(np.int8)
    codes, *_ = quantize_affine(values, (0,), bits)
    np.testing.assert_array_equal(codes, plain)
    np.testing.assert_array_equal(values, before)


@pytest.mark.one_backend
def test_the_noise_is_that_of_all_entries_at_once():
    values = np.random.default_rng(1).normal(size=(1000, 700)).astype("float32")
    rounded = np.float32(0.01) * np.rint(values / np.float32(0.01))
    exact = values.astype("f8")
    noise = np.square(exact - rounded).sum()
    expected = 10 * np.log10(np.square(exact).sum() / noise)
    assert sqnr_db(values, rounded) == pytest.approx(expected, rel=1e-6)
    assert sqnr_db(values.T, rounded.T) == pytest.approx(expected, rel=1e-6)
    assert sqnr_db(values, values) is None


@pytest.mark.one_backend
def test_squares_above_the_range_of_float32_are_added_up():
    values, rounded = np.float32([4e19] * 100), np.float32([3.6e19] * 100)
    assert sqnr_db(values, rounded) == pytest.approx(20, rel=1e-6)
