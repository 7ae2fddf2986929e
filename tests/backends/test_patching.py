"""Wrapping a method of one object."""

import itertools

import pytest

from kerasmem.backends import patch_method

pytestmark = pytest.mark.one_backend


class Counter:
    def __init__(self):
        self.own = lambda: "own"

    def path(self):
        return "method"


def around(mark):
    return lambda original: f"{mark}({original()})"


def test_the_latest_wrapper_runs_first():
    counter = Counter()
    patch_method(counter, "path", around("a"))
    patch_method(counter, "path", around("b"))
    assert counter.path() == "b(a(method))"
    assert Counter().path() == "method"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_wrappers_come_off_in_any_order(order):
    counter = Counter()
    before = dict(vars(counter))
    undo = [patch_method(counter, "path", around(mark)) for mark in "abc"]

    left = {0, 1, 2}
    for index in order:
        undo[index]()
        left.discard(index)
        expected = "method"
        for kept in sorted(left):
            expected = f"{'abc'[kept]}({expected})"
        assert counter.path() == expected

    assert vars(counter) == before


def test_undoing_twice_leaves_a_later_wrapper_alone():
    counter = Counter()
    undo = patch_method(counter, "path", around("a"))
    undo()
    patch_method(counter, "path", around("b"))
    undo()
    assert counter.path() == "b(method)"


def test_a_method_of_the_object_itself_comes_back():
    counter = Counter()
    own = counter.own
    undo = patch_method(counter, "own", around("a"))
    assert counter.own() == "a(own)"
    undo()
    assert counter.own is own


def test_a_wrapper_may_undo_itself_while_it_runs():
    counter = Counter()

    def once(original):
        undo()
        return f"once({original()})"

    patch_method(counter, "path", around("a"))
    undo = patch_method(counter, "path", once)
    assert counter.path() == "once(a(method))"
    assert counter.path() == "a(method)"
