"""How many Python objects there are, and which kinds have grown."""

from collections import Counter

import pytest

from kerasmem.memory.census import census, grown, object_count


class Kept:
    """A kind of its own."""


def test_the_number_of_objects_grows_by_those_that_are_kept():
    before = object_count()
    kept = [object() for _ in range(50_000)]
    grown_by = object_count() - before

    assert grown_by == pytest.approx(len(kept), rel=0.02)


def test_a_census_counts_a_kind_by_its_full_name():
    kept = [Kept() for _ in range(150)]
    found = census()

    assert found[f"{Kept.__module__}.Kept"] == len(kept)
    assert found["dict"] > 1000


def test_rare_kinds_are_left_out():
    kept = [Kept() for _ in range(99)]
    assert f"{Kept.__module__}.Kept" not in census()
    assert len(kept) == 99


def test_the_kinds_that_grew_most_come_first_and_small_growth_is_left_out():
    before = Counter(dict=1000, list=500, tuple=10, set=900)
    after = Counter(dict=1100, list=1800, tuple=10, set=100, frame=45, cell=44)

    assert grown(before, after, least=45) == [
        "list (+1,300)",
        "dict (+100)",
        "frame (+45)",
    ]
    assert grown(before, after, least=200) == ["list (+1,300)"]
