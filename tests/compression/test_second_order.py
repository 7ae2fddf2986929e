"""Weights that make up for what earlier ones lose in rounding (GPTQ)."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.on_data.moments import Moments
from kerasmem.compression.quantize.on_data.rounding import second_order_codes
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError
from kerasmem.files import load_model
from kerasmem.graph.clone import clone
from kerasmem.graph.values import nbytes, to_numpy
from tests.compression.test_adaptive_rounding import X, errors, network, problem
from tests.models import L, in_place

GPTQ = km.Quantize("int4", rounding="gptq")


def steps_of(kernel, limit=7):
    largest = np.abs(kernel).max(axis=0, keepdims=True)
    return largest / limit * np.ones_like(kernel)


def rounded(x, kernel, limit=7, behind=None):
    """Return the steps of a kernel and its codes; `behind`, the float net's inputs."""
    behind = x if behind is None else behind
    known = Moments((x.T @ x)[None], (x.T @ behind)[None], len(x))
    steps = steps_of(kernel, limit)
    return steps, second_order_codes(known, kernel[None], steps[None], limit)[0]


def one_by_one(x, kernel, limit=7):
    """GPTQ as the paper derives it: an inverse of what is left for every row."""
    doubt = len(kernel) / (len(kernel) + len(x))
    moments = x.T @ x
    moments = (1 - doubt) * moments + doubt * np.diag(np.diag(moments))
    order = np.argsort(-np.diag(moments), kind="stable")
    moments = moments + 0.01 * np.diag(moments).mean() * np.eye(len(kernel))
    left, steps, codes = kernel.copy(), steps_of(kernel, limit), np.zeros_like(kernel)
    for place, row in enumerate(order):
        rest = order[place:]
        inverse = np.linalg.inv(moments[np.ix_(rest, rest)])
        codes[row] = np.clip(np.rint(left[row] / steps[row]), -limit, limit)
        lost = left[row] - codes[row] * steps[row]
        left[rest] -= np.outer(inverse[:, 0] / inverse[0, 0], lost)
    return codes


@pytest.mark.one_backend
@pytest.mark.parametrize("size", [20, 150])  # within a block of rows, and over three
def test_codes_are_those_of_the_paper(size):
    x, kernel = problem(size, samples=4 * size)
    steps, codes = rounded(x, kernel)
    expected = one_by_one(x, kernel)
    nearest = np.rint(kernel / steps)
    kept = errors(x, kernel, codes * steps) < errors(x, kernel, nearest * steps)
    assert kept.sum() >= 4
    same = (codes == expected)[:, kept]
    assert same.mean() > 0.999  # a tie may fall to either side


@pytest.mark.one_backend
@pytest.mark.parametrize("limit", [7, 127])
def test_outputs_of_new_samples_are_nearer_too(limit):
    x, kernel = problem(60, samples=1200)
    steps, codes = rounded(x[:600], kernel, limit)
    nearest = np.rint(kernel / steps) * steps
    found = errors(x[600:], kernel, codes * steps).sum()
    assert found < 0.8 * errors(x[600:], kernel, nearest).sum()
    assert np.abs(codes).max() <= limit


@pytest.mark.one_backend
def test_what_the_float_model_gives_does_not_count():
    x, kernel = problem(40, samples=800)
    behind = x + 0.1 * np.random.default_rng(1).normal(size=x.shape)
    (_, aware), (_, unaware) = rounded(x, kernel, 7, behind), rounded(x, kernel)
    np.testing.assert_array_equal(aware, unaware)


@pytest.mark.one_backend
def test_zeros_stay_and_dead_inputs_do_no_harm():
    x, kernel = problem(20)
    kernel[::2], x[:, 5] = 0.0, 0.0
    steps, codes = rounded(x, kernel)
    np.testing.assert_array_equal(codes[::2], 0)
    np.testing.assert_array_equal(codes[5], np.rint(kernel[5] / steps[5]))


@pytest.mark.parametrize("scales", ["max", "mse"])
@pytest.mark.parametrize("granularity", ["channel", "group"])
def test_a_model_keeps_more_of_its_answers(scales, granularity, tmp_path):
    model = network()
    train, test = X[:64], X[64:]
    exact, before = to_numpy(model(test)), model.get_weights()
    size = {"group_size": 9} if granularity == "group" else {}
    lost = {}
    for rounding in ("nearest", "gptq"):
        choice = km.Quantize(
            "int4", rounding=rounding, scales=scales, granularity=granularity, **size
        )
        result = km.compress(model, choice, data=train)
        lost[rounding] = np.square(to_numpy(result.model(test)) - exact).mean()
    assert lost["gptq"] < 0.7 * lost["nearest"]
    assert sum("rounded by GPTQ" in c.detail for c in result.changes) == 4
    result.save(tmp_path / "small.keras")
    opened = load_model(tmp_path / "small.keras")
    np.testing.assert_array_equal(to_numpy(opened(test)), to_numpy(result.model(test)))
    for weight, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)


def test_products_within_layers_are_rounded_so():
    keras.utils.set_random_seed(4)
    inputs = keras.Input((6, 16))
    x = L.MultiHeadAttention(2, 8)(inputs, inputs)
    x = L.LayerNormalization()(L.Add()([x, inputs]))
    x = L.EinsumDense("abc,cd->abd", (None, 32), activation="relu")(x)
    model = keras.Model(inputs, L.Dense(16)(x))
    random = np.random.default_rng(3)
    given = random.normal(size=(96, 6, 4)) @ random.normal(size=(4, 16))
    given = (given + 0.3 * random.normal(size=given.shape)).astype("float32")
    exact = to_numpy(model(given[64:]))
    results = [
        km.compress(clone(model), choice, data=given[:64])
        for choice in (GPTQ, km.Quantize("int4"))
    ]
    found, usual = (
        np.square(to_numpy(result.model(given[64:])) - exact).mean()
        for result in results
    )
    assert sum("rounded by GPTQ" in c.detail for c in results[0].changes) == 6
    assert found < 0.6 * usual
    assert len(quantized_variables(results[0].model)) == 6


def test_a_layer_that_is_called_twice_is_rounded_once():
    keras.utils.set_random_seed(4)
    shared = L.Dense(8, activation="relu")
    inputs = keras.Input((8,))
    model = keras.Model(inputs, L.Dense(3)(shared(shared(inputs))))
    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    result = km.compress(model, GPTQ, data=x)
    assert sum("rounded by GPTQ" in c.detail for c in result.changes) == 2


@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
def test_auto_takes_the_scales_that_leave_least(uneven, outliers):
    rng = np.random.default_rng(6)
    x = rng.normal(size=(512, 24)).astype("float32")
    x[:, ::6] *= 20 if uneven else 1
    kernel = rng.normal(size=(24, 8)).astype("float32")
    kernel[::7] *= 3 if outliers else 1
    dense = L.Dense(8, use_bias=False)
    model = keras.Sequential([keras.Input((24,)), dense])
    dense.kernel.assign(kernel)
    lost, made = {}, {}
    for scales in ("auto", "max", "mse", "awq"):
        named = {"rounding": "auto"} if scales == "auto" else {"rounding": "gptq"}
        named |= {} if scales == "auto" else {"scales": scales}
        made[scales] = clone(model)
        in_place(Quantize("int4", **named), made[scales], x)
        lost[scales] = np.square(to_numpy(made[scales](x)) - x @ kernel).sum()
    assert lost["auto"] <= 1.02 * min(lost.values())
    # Else nothing would have been chosen.
    assert min(lost.values()) < 0.95 * max(lost.values())
    (weight,) = quantized_variables(made["auto"])
    assert weight.coding.by_input == uneven


@pytest.mark.one_backend
def test_auto_keeps_to_scales_that_are_named_and_wants_data():
    x, model = X[:16], network()
    for scales in ("mse", "awq"):
        both = [clone(model), clone(model)]
        for rounding, made in zip(("auto", "gptq"), both, strict=True):
            in_place(Quantize("int4", rounding=rounding, scales=scales), made, x)
        for one, other in zip(*(made.weights for made in both), strict=True):
            np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    with pytest.raises(
        ConfigError,
        match="^rounding='auto' needs samples. Received: data=None. Next: pass data=x",
    ):
        km.compress(model, km.Quantize("int4", rounding="auto"))
    budget = km.Budget(sum(map(nbytes, made.weights)))  # that of int4
    for scheme, more in (("int8-dynamic", {}), ("mixed", {"budget": budget})):
        made = clone(model)
        in_place(Quantize(scheme, rounding="auto", **more), made, x)
        assert not any(v.coding.by_input for v in quantized_variables(made))
