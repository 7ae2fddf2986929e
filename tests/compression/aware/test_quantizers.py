"""Quantizers against the installed tfmot, a NumPy oracle, and their laws."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.compression.quantize.aware.quantizers import (
    AllValues,
    LastValue,
    MovingAverage,
)
from kerasmem.compression.quantize.aware.rounding import (
    round_affine,
    round_symmetric,
    round_to_range,
    round_to_type,
)
from kerasmem.compression.quantize.math import dequantize, quantize, quantize_affine
from kerasmem.graph.values import to_numpy
from tests.compression.aware.batches import batches
from tests.compression.aware.gradient import gradient_of
from tests.compression.aware.oracle import fake_quantized, moving_average

CHILD = Path(__file__).with_name("tfmot_child.py")
KINDS = {"LastValue": LastValue, "MovingAverage": MovingAverage, "AllValues": AllValues}


@pytest.fixture(scope="module")
def tfmot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfmot")
    np.savez(folder / "given.npz", **batches())
    # tfmot takes tf_keras, which warns of its age; the child has no other duty.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    environment.pop("KERAS_BACKEND", None)
    child = subprocess.run(
        [sys.executable, str(CHILD), str(folder / "given.npz"), str(folder / "out")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    with np.load(folder / "out.npz") as found:
        return dict(found)


def quantizer(name):
    kind, bits, symmetric, narrow, per_channel, _ = name.split()
    return KINDS[kind](
        bits=int(bits),
        symmetric=symmetric == "1",
        narrow_range=narrow == "1",
        axis=-1 if per_channel == "1" else None,
    )


def run(name, x):
    """Return outputs and ends of a quantizer after each batch, from [-6, 6] on."""
    own = quantizer(name)
    shape = (x.shape[-1],) if own.axis == -1 else ()
    ends = tuple(keras.ops.full(shape, value, "float32") for value in (-6.0, 6.0))
    rows = []
    for batch in x:
        y, ends = own(keras.ops.convert_to_tensor(batch), ends)
        rows.append([to_numpy(part) for part in (y, *ends)])
    return [np.stack(part) for part in zip(*rows, strict=True)]


def test_quantizers_are_tfmots_to_the_bit(tfmot):
    for name, x in batches().items():
        for part, values in zip(("y", "low", "high"), run(name, x), strict=True):
            expected = tfmot[f"{name} {part}"]
            np.testing.assert_array_equal(values, expected, err_msg=f"{name} {part}")


def test_gradients_are_tfmots(tfmot):
    for name, x in batches().items():
        own = quantizer(name)
        ends = tfmot[f"{name} low"][0], tfmot[f"{name} high"][0]
        ends = tuple(map(keras.ops.convert_to_tensor, ends))
        found = gradient_of(lambda t: keras.ops.square(own.rounded(t, ends)), x[0])  # noqa: B023
        expected = tfmot[f"{name} gradient"][0]
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_quantizers_are_those_of_the_oracle():
    for name, x in batches().items():
        own = quantizer(name)
        if own.symmetric:
            continue
        axis = tuple(range(x.ndim - 2)) if own.axis == -1 else None
        low = high = None
        for batch, y, found_low, found_high in zip(x, *run(name, x), strict=True):
            seen = np.minimum(batch.min(axis), 0), np.maximum(batch.max(axis), 0)
            old = (
                np.float32(-6) if low is None else low,
                (np.float32(6) if high is None else high),
            )
            if isinstance(own, MovingAverage):
                low, high = (
                    moving_average(a, b, 0.999) for a, b in zip(old, seen, strict=True)
                )
            elif isinstance(own, AllValues):
                low, high = np.minimum(old[0], seen[0]), np.maximum(old[1], seen[1])
            else:
                low, high = seen
            np.testing.assert_array_equal(found_low, low, err_msg=name)
            np.testing.assert_array_equal(found_high, high, err_msg=name)
            expected, _ = fake_quantized(batch, low, high, own.bits, own.narrow_range)
            np.testing.assert_array_equal(y, expected, err_msg=name)


def floats(low, high):
    return st.floats(low, high, width=32, allow_subnormal=False)


ranges = st.tuples(floats(-100, 0), floats(0, 100)).filter(lambda r: r[1] - r[0] > 1e-3)


@settings(max_examples=40, deadline=None)
@given(
    ranges, st.lists(floats(-200, 200), min_size=9, max_size=9), st.sampled_from([4, 8])
)
def test_the_laws_of_rounding_to_a_range(ends, values, bits):
    x = np.array([0.0, *values], "float32")
    low, high = map(np.float32, ends)
    y = to_numpy(round_to_range(keras.ops.convert_to_tensor(x), low, high, bits))
    again = to_numpy(round_to_range(keras.ops.convert_to_tensor(y), low, high, bits))
    _, inside = fake_quantized(x, low, high, bits)
    scale = (float(high) - float(low)) / ((1 << bits) - 1)
    assert y[0] == 0.0
    np.testing.assert_allclose(again, y, rtol=0, atol=1e-4 * scale)
    assert (np.abs(y - x)[inside] <= 0.5001 * scale + 1e-5 * np.abs(x)[inside]).all()
    slope = gradient_of(lambda t: round_to_range(t, low, high, bits), x)
    np.testing.assert_array_equal(slope, inside.astype("float32"))


# Nothing so small that a framework takes it for zero.
weight = floats(-100, 100).map(lambda x: x if abs(x) > 1e-30 else 0.0)
weights = st.lists(weight, min_size=6, max_size=6)


@settings(max_examples=40, deadline=None)
@given(weights, st.sampled_from([4, 8]), st.sampled_from([(0,), (1,), (0, 1)]))
def test_weights_are_rounded_as_they_will_be_stored(values, bits, axes):
    x = np.array(values, "float32").reshape(2, 3)
    tensor = keras.ops.convert_to_tensor(x)
    symmetric = to_numpy(round_symmetric(tensor, axes, bits))
    np.testing.assert_array_equal(symmetric, dequantize(*quantize(x, axes, bits)))
    np.testing.assert_array_equal(symmetric[x == 0], 0)
    affine = to_numpy(round_affine(tensor, axes, bits))
    np.testing.assert_array_equal(affine, dequantize(*quantize_affine(x, axes, bits)))
    again = to_numpy(
        round_symmetric(keras.ops.convert_to_tensor(symmetric), axes, bits)
    )
    np.testing.assert_allclose(again, symmetric, rtol=1e-6)


@pytest.mark.parametrize("rounds", [round_symmetric, round_affine])
def test_gradients_pass_the_rounding_of_weights_whole(rounds):
    x = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    factors = np.arange(12, dtype="float32").reshape(4, 3)
    found = gradient_of(lambda t: keras.ops.multiply(rounds(t, (0,)), factors), x)
    np.testing.assert_array_equal(found, factors)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_pass_the_rounding_to_a_type(dtype):
    x = np.array([1.0, 0.3, -2e-3], "float32")
    y = to_numpy(round_to_type(keras.ops.convert_to_tensor(x), dtype))
    expected = keras.ops.cast(keras.ops.cast(x, dtype), "float32")
    np.testing.assert_array_equal(y, to_numpy(expected))
    np.testing.assert_array_equal(gradient_of(lambda t: round_to_type(t, dtype), x), 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_precision_tensor_keeps_its_type(dtype):
    x = keras.ops.cast(np.linspace(-1, 1, 9, dtype="float32"), dtype)
    y = round_to_range(x, np.float32(-1), np.float32(1))
    assert keras.backend.standardize_dtype(y.dtype) == dtype
    exact, _ = fake_quantized(to_numpy(keras.ops.cast(x, "float32")), -1, 1)
    np.testing.assert_array_equal(
        to_numpy(keras.ops.cast(y, "float32")),
        to_numpy(keras.ops.cast(keras.ops.cast(exact, dtype), "float32")),
    )


def test_an_empty_range_gives_zeros_and_no_nan():
    x = keras.ops.convert_to_tensor(np.array([-1.0, 0.0, 2.0], "float32"))
    zero = np.float32(0)
    np.testing.assert_array_equal(to_numpy(round_to_range(x, zero, zero)), 0)
