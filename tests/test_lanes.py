"""The lanes of the suite leave nothing out."""

from types import SimpleNamespace

import pytest

from tests.lanes import durations, share_out, slow, write_durations

pytestmark = pytest.mark.one_backend
SECONDS = {"a.py::x": 3.0, "a.py::y": 2.0, "b.py::x": 7.0, "c.py::gone": 5.0}


def test_what_took_long_is_slow():
    assert slow(["a.py::x", "a.py::z"], SECONDS) == {"a.py::x"}


def test_no_file_is_slow_altogether():
    assert slow(["a.py::x", "a.py::y", "b.py::x"], SECONDS) == {"a.py::x"}


def test_a_file_whose_shortest_test_is_very_long_is_slow_altogether():
    seconds = {"a.py::x": 40.0, "a.py::y": 30.0, "b.py::x": 7.9}
    assert slow([*seconds], seconds) == {"a.py::x", "a.py::y"}


def test_a_test_that_is_new_is_fast_and_one_that_is_gone_is_nothing():
    assert slow(["c.py::new", "c.py::newer"], SECONDS) == set()


def ordered(names, seconds, workers):
    items = [SimpleNamespace(nodeid=name) for name in names]
    share_out(items, seconds, workers)
    return [item.nodeid for item in items]


def test_the_file_that_took_longest_comes_first_in_its_own_order():
    names = ["a.py::y", "a.py::x", "c.py::new", "b.py::x", "d.py::x"]
    found = ordered(names, SECONDS, 1)
    assert found == ["b.py::x", "a.py::y", "a.py::x", "c.py::new", "d.py::x"]


def test_two_workers_have_whole_files_that_take_equally_long():
    seconds = {"long.py::0": 30.0} | {f"{n}.py::0": 10.0 for n in "abc"}
    seconds |= {f"{n}.py::1": 1.0 for n in "abc"}
    names = [*sorted(seconds), *(f"new.py::{n}" for n in range(5))]
    found = ordered(names, seconds, 2)
    assert sorted(found) == sorted(names)
    assert found[0] == "long.py::0"
    assert {*found[1:6]} == {name for name in names if name.startswith("new")}
    assert found[6:] == [name for name in names if name[0] in "abc" and name[1] == "."]


def test_a_file_goes_where_it_fits_as_a_whole():
    seconds = {"a.py::0": 30.0, "b.py::0": 10.0, "b.py::1": 1.0, "c.py::0": 5.0}
    names = ["a.py::0", "b.py::0", "b.py::1", "c.py::0", "c.py::1", "d.py::0"]
    found = ordered(names, seconds, 2)
    assert found == ["a.py::0", "c.py::0", "c.py::1", "b.py::0", "b.py::1", "d.py::0"]


def test_a_file_is_in_two_workers_where_it_fits_in_none():
    names = [f"a.py::{n}" for n in range(3)]
    assert ordered(names, {}, 2) == names


def test_what_took_long_is_kept_and_what_did_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr("tests.lanes.FOLDER", tmp_path)
    write_durations("jax", {"a.py::x": 0.69, "a.py::y": 1.04, "b.py::x": 7.0})
    assert list(durations("jax").items()) == [("b.py::x", 7.0), ("a.py::y", 1.0)]
    assert durations("torch") == {}
    write_durations("jax", {"b.py::x": 0.5, "c.py::x": 2.0})  # a part of the lane
    assert durations("jax") == {"c.py::x": 2.0, "a.py::y": 1.0}
