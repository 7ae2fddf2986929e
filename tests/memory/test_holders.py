"""Who holds an object is told by the names that lead to it."""

import gc

import keras
import numpy as np
import pytest

from kerasmem.memory.census import holder

IN_THE_MODULE = {"of all": []}


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch):
    """The objects of all tests before are searched too."""
    gc.unfreeze()
    monkeypatch.setattr("kerasmem.memory.census._MOST_SECONDS", 60.0)


class Item:
    """Something that is held."""


class Slotted:
    """Holds something without a dictionary of its own."""

    __slots__ = ("held",)


class Holder(keras.callbacks.Callback):
    """Holds something in several ways."""

    everywhere = None

    def closed_over(self, item):
        self.hook = lambda: item

    def in_a_slot(self, item):
        self.slotted = Slotted()
        self.slotted.held = item

    def in_a_set(self, item):
        self.items = [{item}]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("hold", "path"),
    [
        ("in_a_slot", ".slotted.held"),
        ("in_a_set", ".items[...][...]"),
        ("closed_over", ".hook of Holder.closed_over.<locals>.<lambda>()[...]"),
    ],
)
def test_an_object_in_a_callback_is_found_by_its_attribute(hold, path):
    callback, item = Holder(), Item()
    getattr(callback, hold)(item)
    assert holder(item) == f"the callback Holder, in {path}"


def test_an_object_in_a_layer_or_a_model_is_found():
    layer, item = keras.layers.Layer(), Item()
    layer.cache = {"last": item}
    assert holder(item) == "the layer Layer, in .cache.last"


@pytest.mark.one_backend
def test_an_object_in_a_module_or_a_class_is_found():
    kept, held = Item(), Item()
    IN_THE_MODULE["of all"].append(kept)
    Holder.everywhere = held
    assert holder(kept) == f"the module {__name__}, in .IN_THE_MODULE[...][...]"
    assert holder(held) == "the class Holder, in .everywhere"
    IN_THE_MODULE["of all"].clear()
    Holder.everywhere = None


@pytest.mark.one_backend
def test_an_array_is_found_where_the_garbage_collector_knows_no_holder():
    callback, array = Holder(), np.zeros(3)
    callback.pairs = [("loss", {"curve": array})]
    gc.collect()
    assert holder(array) == "the callback Holder, in .pairs[...][...].curve"


@pytest.mark.one_backend
def test_an_object_that_only_a_running_function_has_is_said_to_be_one():
    assert holder([Item()][0]).startswith("no Python object: a running function")


@pytest.mark.one_backend
def test_a_long_chain_is_given_up():
    item = chain = Item()
    for _ in range(20):
        chain = [chain]
    assert holder(item) is None
    assert chain
