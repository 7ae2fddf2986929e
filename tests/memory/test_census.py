"""How many Python objects there are, and which kinds have grown."""

import gc
from collections import Counter

import keras
import numpy as np
import pytest

from kerasmem.memory.census import (
    Census,
    census,
    grown,
    kind_name,
    newest,
    object_count,
)
from kerasmem.records import MemoryRecord
from kerasmem.units import MIB


class Kept:
    """A kind of its own."""


@pytest.mark.one_backend
def test_the_number_of_objects_grows_by_those_that_are_kept():
    before = object_count()
    kept = [object() for _ in range(50_000)]
    grown_by = object_count() - before

    assert grown_by == pytest.approx(len(kept), rel=0.02)


@pytest.mark.one_backend
def test_a_census_counts_a_kind_by_its_full_name():
    before = census().number
    kept = [Kept() for _ in range(150)]
    pairs = [{"kept": one} for one in kept]
    found = census().number

    assert found[f"{Kept.__module__}.Kept"] == len(kept)
    assert found["dict"] - before["dict"] >= len(pairs)


@pytest.mark.one_backend
def test_rare_kinds_are_counted_too():
    kept = Kept()
    assert census().number[f"{Kept.__module__}.Kept"] == 1
    assert kept


@pytest.mark.one_backend
def test_what_kerasmem_keeps_is_not_counted():
    kept = [MemoryRecord(0, None, (), None) for _ in range(200)]
    assert not [name for name in census().number if name.startswith("kerasmem.")]
    assert len(kept) == 200


def test_arrays_and_tensors_count_with_their_bytes_and_views_with_none():
    gc.collect()  # of what other tests left
    before = census()
    # A tuple of arrays alone is unknown to the garbage collector.
    array = np.zeros(1000)
    kept = [keras.ops.ones((50, 10)), {"pair": (array, array[:500])}]
    gc.collect()
    after = census()

    name = "numpy.ndarray"
    assert after.number[name] - before.number[name] == 2
    assert after.nbytes[name] - before.nbytes[name] == 8000
    tensors = kind_name(type(kept[0]))
    assert after.nbytes[tensors] - before.nbytes[tensors] == 2000
    assert (id(array), 8000) in after.arrays


@pytest.mark.one_backend
def test_a_kind_is_named_without_the_rooms_that_its_package_hides():
    assert kind_name(keras.layers.Dense) == "keras.Dense"
    assert kind_name(Counter) == "collections.Counter"
    assert kind_name(dict) == "dict"


def counts(**number):
    return Census(Counter(number), Counter(), frozenset())


@pytest.mark.one_backend
def test_the_kinds_that_grew_most_come_first_and_small_growth_is_left_out():
    before = counts(dict=1000, list=500, tuple=10, set=900)
    after = counts(dict=1200, list=3100, tuple=10, set=100, frame=290, cell=190)

    assert grown(before, after, epochs=2, blocks=1000.0) == [
        ("list", 1300.0, 0.0),
        ("frame", 145.0, 0.0),
        ("dict", 100.0, 0.0),
    ]
    assert [each.kind for each in grown(before, after, epochs=2, blocks=9e3)] == [
        "list"
    ]


@pytest.mark.one_backend
def test_one_graph_an_epoch_is_worth_a_word_and_bytes_come_first():
    before = Census(Counter({"tensorflow.FuncGraph": 3}), Counter(), frozenset())
    arrays = Counter({"numpy.ndarray": 4 * MIB})
    number = Counter({"tensorflow.FuncGraph": 7, "numpy.ndarray": 4, "weakref.ref": 9})
    after = Census(number, Counter(), frozenset())
    graphs, one_array = grown(before, after, epochs=4)
    assert graphs == ("tensorflow.FuncGraph", 1.0, 0.0)
    assert one_array.kind == "numpy.ndarray"
    # Beside megabytes a few objects say nothing.
    after = Census(number, arrays, frozenset())
    assert grown(before, after, epochs=4) == [("numpy.ndarray", 1.0, MIB)]


@pytest.mark.one_backend
def test_the_newest_of_a_kind_are_those_that_came_since():
    old = [Kept() for _ in range(5)]
    before = census()
    new = [Kept() for _ in range(7)]
    gc.collect()
    found = newest(f"{Kept.__module__}.Kept", 7, before)
    assert 1 <= len(found) <= 3
    assert all(any(one is each for each in new) for one in found)
    assert len(old) == 5
