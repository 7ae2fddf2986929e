"""LiteRT's interpreter and the comparison of its outputs, without a conversion."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasmem.backends.converting import Argument
from kerasmem.errors import ConfigError, ModelError
from kerasmem.extras.litert.arguments import random_samples
from kerasmem.extras.litert.interpreters import LiteRT
from kerasmem.stats.difference import difference

pytestmark = pytest.mark.one_backend

finite = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=20))
def test_the_difference_is_the_largest_as_a_share_of_the_largest(pairs):
    output, expected = (np.array(values) for values in zip(*pairs, strict=True))
    share = np.abs(output - expected).max() / max(np.abs(expected).max(), 1.0)
    assert difference([output], [expected], least=1.0) == pytest.approx(share)
    assert difference([expected], [expected], least=1.0) == 0.0


def test_each_output_is_a_share_of_its_own_largest():
    outputs = [np.array([1000.0]), np.array([2.0])]
    expected = [np.array([1001.0]), np.array([4.0])]
    assert difference(outputs, expected, least=1.0) == 0.5


def test_nan_agrees_with_nan_alone_and_infinity_with_itself():
    nan, infinity = np.array([np.nan]), np.array([np.inf])
    assert difference([nan, infinity], [nan, infinity], least=1.0) == 0.0
    assert difference([nan], [np.array([1.0])], least=1.0) == np.inf
    assert difference([np.array([1.0])], [infinity], least=1.0) == np.inf


def test_another_shape_is_another_output():
    with pytest.raises(
        ModelError, match=r"differ in shape. Expected: \[\(2,\)\]. Received: \[\(1,\)\]"
    ):
        difference([np.zeros(1)], [np.zeros(2)], least=1.0)


def test_random_samples_suit_the_inputs():
    arguments = [
        Argument("a", (None, None, 3), "float32"),
        Argument("b", (1, 2), "int32"),
        Argument("c", (None,), "bool"),
    ]
    first, second, third = random_samples(arguments, 5)
    assert (first.shape, first.dtype) == ((5, 32, 3), np.float32)
    assert (second.shape, set(np.unique(second))) == ((5, 2), {0, 1})
    assert (third.shape, third.dtype) == ((5,), bool)
    with pytest.raises(ConfigError, match="input 'd' of dtype string"):
        random_samples([Argument("d", (None,), "string")], 5)


def test_what_is_no_litert_file_is_told_in_one_line():
    with pytest.raises(ModelError, match="LiteRT cannot load the file"):
        LiteRT(b"no file at all")


def test_without_the_interpreter_its_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install kerasmem\[litert\]"):
        LiteRT(b"")
