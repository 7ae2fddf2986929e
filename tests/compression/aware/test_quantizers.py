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

from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
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


def quantizer():
    """Return the layer with a range of [-6, 6], as tfmot's begins."""
    own = FakeQuantize(decay=0.999)
    own.range.assign([-6.0, 6.0])
    return own


def run(x):
    """Return outputs and ends of a quantizer after each batch."""
    own, rows = quantizer(), []
    for batch in x:
        y = own(keras.ops.convert_to_tensor(batch), training=True)
        rows.append([to_numpy(y), *to_numpy(own.range)])
    return [np.stack(part) for part in zip(*rows, strict=True)]


def test_the_layer_is_tfmots_quantizer_to_the_bit(tfmot):
    for name, x in batches().items():
        for part, values in zip(("y", "low", "high"), run(x), strict=True):
            expected = tfmot[f"{name} {part}"]
            np.testing.assert_array_equal(values, expected, err_msg=f"{name} {part}")


def test_gradients_are_tfmots(tfmot):
    for name, x in batches().items():
        own = quantizer()
        own.range.assign([tfmot[f"{name} low"][0], tfmot[f"{name} high"][0]])
        found = gradient_of(lambda t: keras.ops.square(own(t)), x[0])  # noqa: B023
        expected = tfmot[f"{name} gradient"][0]
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_the_layer_is_that_of_the_oracle():
    for name, x in batches().items():
        ends = np.float32(-6), np.float32(6)
        for batch, y, low, high in zip(x, *run(x), strict=True):
            seen = np.minimum(batch.min(), 0), np.maximum(batch.max(), 0)
            pairs = zip(ends, seen, strict=True)
            ends = tuple(moving_average(a, b, 0.999) for a, b in pairs)
            np.testing.assert_array_equal((low, high), ends, err_msg=name)
            expected, _ = fake_quantized(batch, *ends)
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


def test_a_config_of_an_earlier_version_opens():
    config = FakeQuantize(ends=(0.0, 1.0)).get_config() | {"never_negative": True}
    assert FakeQuantize.from_config(config).fixed == (0.0, 1.0)
