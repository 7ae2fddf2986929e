"""Sensitivity: what one weight's zeros cost, and ratios made of it."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.prune.analysis import (
    Sensitivity,
    WeightSensitivity,
    sensitivity,
)
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.values import to_numpy
from tests.models import L, chain, in_place


@pytest.fixture
def model():
    made = keras.Sequential(
        [keras.Input((4,)), L.Dense(4, use_bias=False), L.Dense(1, use_bias=False)]
    )
    made.layers[0].kernel.assign(np.diag([1.0, 2, 3, 4]) + 1e-3)
    made.layers[1].kernel.assign([[1.0], [2], [3], [4]])
    made.compile("sgd", "mse")
    return made


DATA = np.eye(4, dtype="float32"), np.array([[1.0], [4], [9], [16]])
NAMED = {"prune": km.Prune(0.5, include="kernel")}


def test_each_weight_is_pruned_alone_and_the_model_is_left_alone(model):
    before = [to_numpy(v) for v in model.variables]
    found = sensitivity(model, DATA, sparsities=(0.75, 0.5), **NAMED)
    for old, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, to_numpy(variable))
    assert (found.metric, found.sparsities) == ("loss", (0.5, 0.75))
    first, second = found.weights
    assert (first.size, second.size) == (16, 4)
    # Of the diagonal nothing is lost; the others lose 1 and 4, then 9 too.
    assert first.values == pytest.approx((0, 0), abs=1e-2)
    expected = [(1 + 16) / 4, (1 + 16 + 81) / 4]
    assert second.values == pytest.approx(expected, rel=1e-2)
    text = found.table()
    assert first.weight in text
    assert "loss, 0.00" in text.splitlines()[0]


RECORD = Sensitivity(
    "accuracy",
    0.9,
    (0.5, 0.9),
    (
        WeightSensitivity("robust/kernel", 100, (0.9, 0.85)),
        WeightSensitivity("frail/kernel", 100, (0.8, 0.4)),
    ),
)


def test_a_weight_whose_path_ends_in_that_of_another_has_its_own_ratio():
    def dense():
        return L.Dense(6, use_bias=False, name="dense")

    start = keras.Input((6,))
    inside = keras.Model(start, dense()(start), name="inside")
    model = chain((6,), dense(), inside)
    record = Sensitivity(
        "accuracy",
        0.9,
        (0.5, 0.9),
        (
            WeightSensitivity("dense/kernel", 36, (0.9, 0.9)),
            WeightSensitivity("inside/dense/kernel", 36, (0.5, 0.1)),
        ),
    )
    ratios = record.ratios(0.45)
    found = km.compress(model, km.Prune(0.45, include="kernel", ratios=ratios))
    zeros = [np.mean(to_numpy(v) == 0) for v in found.model.weights]
    assert zeros == pytest.approx([0.9, 0.0], abs=0.03)


def test_ratios_cost_each_weight_the_same_and_reach_the_target():
    ratios = RECORD.ratios(0.5)
    robust, frail = ratios.values()
    assert robust + frail == pytest.approx(1.0, abs=1e-5)
    # Costs are 0.05 per 0.4 beyond 0.5, and 0.1 per 0.5 up to it.
    assert (robust - 0.5) * 0.05 / 0.4 == pytest.approx(frail * 0.1 / 0.5, abs=1e-5)
    assert list(ratios) == ["(^|/)robust/kernel$", "(^|/)frail/kernel$"]
    assert list(RECORD.ratios(0.9).values()) == pytest.approx([0.9, 0.9], abs=1e-5)


def test_ratios_are_what_prune_takes(model):
    found = sensitivity(model, DATA, sparsities=(0.25, 0.5, 0.75), **NAMED)
    prune = km.Prune(0.5, ratios=found.ratios(0.5))
    changes = {c.weight: c.detail for c in in_place(prune, model)}
    zeros = [(to_numpy(layer.kernel) == 0).sum() for layer in model.layers]
    assert zeros[0] >= 9
    assert zeros[1] == 0
    assert len(changes) == 2


def test_bad_arguments_are_errors(model):
    with pytest.raises(ConfigError, match="at most .*, 0.9. Received: sparsity=0.95"):
        RECORD.ratios(0.95)
    with pytest.raises(ConfigError, match="above 0. Received: sparsities=\\(\\)"):
        sensitivity(model, DATA, sparsities=())
    with pytest.raises(ConfigError, match="Received: sparsities=1"):
        sensitivity(model, DATA, sparsities=(1,))
    plain = keras.Sequential([keras.Input((4,)), L.Dense(4)])
    with pytest.raises(ModelError, match="not compiled"):
        sensitivity(plain, DATA)
