"""Rules of arguments: one form of message, and numbers of NumPy."""

import json
import math

import numpy as np
import pytest

import kerasmem as km
from kerasmem.checks import OneOf, Real, Whole
from kerasmem.compression.prune.schedules import SCHEDULES
from kerasmem.errors import ConfigError

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (Whole(0), True),
        (Whole(0), np.bool_(True)),
        (Whole(0), np.float64(1)),
        (Whole(1, 3), np.int64(4)),
        (Real(), np.float32("nan")),
        (Real(below=1), np.float16(1)),
        (Real(), 10**400),
        (OneOf((True, False)), 1),
        (OneOf(("a", "b")), np.zeros((2, 2))),
    ],
)
def test_an_invalid_value_is_named_with_its_owner(rule, value):
    form = r"^The argument `x` of owner must be .*\. Received: x=.*\.$"
    with pytest.raises(ConfigError, match=form):
        rule.check("owner", "x", value)


def test_numbers_of_numpy_become_those_of_python():
    prune = km.Prune(np.float64(0.5), seed=np.int64(3), ratios={"a": np.float32(0.25)})
    assert json.loads(json.dumps(prune.to_json()))["ratios"] == {"a": 0.25}
    assert type(prune.sparsity) is float
    assert type(prune.seed) is int
    assert type(Real().check("owner", "x", np.float16(0.5))) is float


@pytest.mark.parametrize("name", ["include", "exclude", "ratios"])
@pytest.mark.parametrize("value", [0.3, np.array(0.5), None, 3, b"a"])
def test_a_number_is_no_list(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` of Prune must be .* regular exp"):
        km.Prune(0.5, **{name: value})


def test_a_number_is_no_list_of_channels():
    form = "`ratios` of PruneChannels must be pairs .* Received: ratios=0.3"
    with pytest.raises(ConfigError, match=form):
        km.PruneChannels(0.5, ratios=0.3)


def test_a_budget_of_numpy_becomes_plain_data():
    mixed = km.Quantize("mixed", budget=km.Budget(np.int64(8000)))
    assert type(mixed.budget.bytes) is int
    assert json.loads(json.dumps(mixed.to_json()))["budget"] == {"max_bytes": 8000}


def test_a_text_of_numpy_is_one_of_the_texts():
    assert type(OneOf(("a", "b")).check("X", "x", np.str_("b"))) is str


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("end", ["0.5", True, math.inf])
def test_the_end_of_every_schedule_is_a_finite_number(schedule, end):
    with pytest.raises(ConfigError, match="`end` of .* must be a number"):
        schedule(end=end, unit="step")
