"""Names by which a program reaches an object."""

import sys
import types
import weakref

import keras
import numpy as np
import pytest

from kerasmem.memory.references import names

pytestmark = pytest.mark.one_backend


def only(links):
    (link,) = links.values()
    return str(link), link.where


class Trial:
    pass


class Slotted:
    __slots__ = ("value",)


def test_lists_dicts_and_attributes_are_written_as_in_the_program():
    search = Trial()
    search.trials = [Trial(), {"best": (0, Trial())}]
    found, where = only(names([search.trials[1]["best"][1]]))
    assert found == "search.trials[1]['best'][1]"
    assert where.startswith("a local of test_lists_dicts")


def test_a_slot_has_its_name():
    holder = Slotted()
    holder.value = Trial()
    assert only(names([holder.value]))[0] == "holder.value"


def test_a_closure_names_its_variable():
    def make():
        model = Trial()
        return lambda: model

    function = make()
    objects = [function.__closure__[0].cell_contents]
    assert only(names(objects))[0] == "function.<closure model>"


def test_a_global_variable_has_the_name_of_its_module(monkeypatch):
    module = types.ModuleType("users_module")
    module.__file__ = "/home/user/users_module.py"
    module.CACHE = {"x": np.zeros(3)}
    monkeypatch.setitem(sys.modules, "users_module", module)
    del module
    found = only(names([sys.modules["users_module"].CACHE["x"]]))
    assert found == ("users_module.CACHE['x']", "users_module")


def test_the_shortest_name_is_taken():
    deep = [[[Trial()]]]
    short = deep[0][0]
    assert only(names([short[0]]))[0] == "short[0]"


def test_a_layer_is_named_by_its_model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    found, _ = only(names([model.layers[0].kernel]))
    assert found == "model._layers[1]._kernel"


def test_a_local_that_is_deleted_is_not_held_by_the_search():
    one = Trial()
    gone = weakref.ref(one)
    names([Trial()])
    del one
    assert gone() is None
