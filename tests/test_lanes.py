"""The lanes of the suite leave nothing out."""

import pytest

from tests.lanes import durations, slow, write_durations

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


def test_what_took_long_is_kept_and_what_did_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr("tests.lanes.FOLDER", tmp_path)
    write_durations("jax", {"a.py::x": 0.69, "a.py::y": 1.04, "b.py::x": 7.0})
    assert list(durations("jax").items()) == [("b.py::x", 7.0), ("a.py::y", 1.0)]
    assert durations("torch") == {}
    write_durations("jax", {"b.py::x": 0.5, "c.py::x": 2.0})  # a part of the lane
    assert durations("jax") == {"c.py::x": 2.0, "a.py::y": 1.0}
