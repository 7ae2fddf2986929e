"""The analytic estimate against peaks of an H200: a sample of the benchmark."""

import functools
import json
import math
import statistics
from pathlib import Path

import keras
import pytest
from keras import layers

import kerasmem as km

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "gpu_peaks.jsonl")
    .read_text()
    .splitlines()
]


@functools.cache
def network(name):
    """Return the network that was measured, as it was built there."""
    makers = {"mlp": mlp, "cnn": cnn, "lstm": lstm, "transformer": transformer}
    return makers[name]()


def mlp():
    inputs = x = layers.Input((784,))
    for _ in range(4):
        x = layers.Dense(4096, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def cnn():
    inputs = x = layers.Input((64, 64, 3))
    for filters in (64, 64, 128, 128, 256):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        if filters != 64:
            x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def lstm():
    inputs = layers.Input((128,), dtype="int32")
    x = layers.Embedding(20000, 256)(inputs)
    x = layers.LSTM(512)(layers.LSTM(512, return_sequences=True)(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def transformer():
    inputs = layers.Input((256,), dtype="int32")
    x = layers.Embedding(20000, 512)(inputs)
    for _ in range(6):
        attended = layers.MultiHeadAttention(8, 64)(x, x)
        x = layers.LayerNormalization()(x + attended)
        hidden = layers.Dense(2048, activation="gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(512)(hidden))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def estimate(row):
    return km.estimate_memory(
        network(row["model"]),
        row["batch"],
        dtype_policy=row["dtype"],
        optimizer=row["opt"],
        backend=row["backend"],
        jit_compile=row["jit"],
        method="analytic",
    )


def error(row, found):
    peak = found.peak_bytes
    if row["backend"] == "jax":
        # Its allocator cannot start a new peak: the one measured is the process's.
        peak = max(peak, found.first_step_bytes)
    return abs(peak / row["steady_bytes"] - 1)


@functools.cache
def of(backend, jit=False):
    rows = [row for row in ROWS if row["backend"] == backend and row["jit"] == jit]
    return [(row, estimate(row)) for row in rows]


@pytest.mark.one_backend
@pytest.mark.parametrize(("backend", "most"), [("tensorflow", 0.06), ("torch", 0.02)])
def test_without_a_compiler_the_median_error_is_small(backend, most):
    errors = sorted(error(*case) for case in of(backend))
    assert statistics.median(errors) <= most
    assert errors[int(0.9 * len(errors))] <= 0.25


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_compiled_step_is_within_a_quarter(backend):
    assert max(error(*case) for case in of(backend, jit=True)) <= 0.25


@pytest.mark.one_backend
def test_the_interval_holds_nine_in_ten():
    inside = [
        found.low_bytes <= row["steady_bytes"] <= found.high_bytes
        for backend in ("tensorflow", "torch")
        for row, found in of(backend)
    ]
    assert sum(inside) >= 0.9 * len(inside)


@pytest.mark.one_backend
def test_its_width_without_a_model_holds_nine_in_ten_of_that_model():
    inside = []
    for backend in ("tensorflow", "torch"):
        needed = [(row["model"], needed_width(row, e)) for row, e in of(backend)]
        for model, width in needed:
            others = sorted(w for other, w in needed if other != model)
            place = math.ceil(0.9 * (len(others) + 1))
            inside.append(width <= others[min(place, len(others)) - 1])
    assert 0.85 <= sum(inside) / len(inside) <= 0.95


@pytest.mark.one_backend
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])  # of JAX there are three
def test_its_width_is_the_one_that_nine_in_ten_need(backend):
    cases = [*of(backend), *of(backend, jit=True)]
    widths = sorted(needed_width(*case) for case in cases)
    place = min(math.ceil(0.9 * (len(widths) + 1)), len(widths)) - 1
    # Each is a multiple of the interval as it is.
    assert widths[place] == pytest.approx(1, abs=0.1)


def needed_width(row, found):
    """Return how many times as wide the interval has to be."""
    peak, true = found.peak_bytes, row["steady_bytes"]
    end = found.low_bytes if true < peak else found.high_bytes
    return (true - peak) / (end - peak)


@pytest.mark.one_backend
def test_the_interval_of_the_first_step_holds_nine_in_ten():
    inside = [
        found.first_step_low_bytes <= row["first_bytes"] <= found.first_step_high_bytes
        for backend in ("tensorflow", "torch")
        for row, found in of(backend)
    ]
    assert sum(inside) >= 0.9 * len(inside)


def test_the_answer_does_not_hang_on_the_backend_that_runs():
    row = next(r for r in ROWS if r["backend"] == "torch" and r["model"] == "cnn")
    # Worked out once under each backend; the suite runs under all three.
    assert estimate(row).peak_bytes == 284_318_080
