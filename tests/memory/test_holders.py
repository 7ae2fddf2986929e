"""Who holds an object is told by the names that lead to it."""

import gc
from typing import ClassVar

import keras
import numpy as np
import pytest

from kerasmem.memory.references import holder, names

IN_THE_MODULE = {"of all": []}


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch):
    """The objects of all tests before are searched too."""
    gc.unfreeze()
    monkeypatch.setattr("kerasmem.memory.references._SECONDS", 60.0)


class Item:
    """Something that is held."""


class Slotted:
    """Holds something without a dictionary of its own."""

    __slots__ = ("held",)


class Holder(keras.callbacks.Callback):
    """Holds something in several ways."""

    def closed_over(self, item):
        self.hook = lambda: item

    def in_a_slot(self, item):
        self.slotted = Slotted()
        self.slotted.held = item

    def in_a_list(self, item):
        self.items = [[item]]


def held_by(read):
    """Describe the holder of an item that is in no local variable."""
    (link,) = names([read()]).values()
    return holder(link)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("hold", "path"),
    [
        ("in_a_slot", ".slotted.held"),
        ("in_a_list", ".items[0][0]"),
        ("closed_over", ".hook.<closure item>"),
    ],
)
def test_an_object_in_a_callback_is_found_by_its_attribute(hold, path):
    callback = Holder()
    getattr(callback, hold)(Item())
    read = {
        "in_a_slot": lambda: callback.slotted.held,
        "in_a_list": lambda: callback.items[0][0],
        "closed_over": lambda: [callback.hook()][0],
    }
    assert held_by(read[hold]) == f"the callback Holder, in {path}"


def test_an_object_in_a_layer_or_a_model_is_found():
    layer = keras.layers.Layer()
    layer.cache = {"last": Item()}
    assert held_by(lambda: layer.cache["last"]) == "the layer Layer, in .cache['last']"


@pytest.mark.one_backend
def test_an_object_in_a_module_is_found():
    IN_THE_MODULE["of all"].append(Item())
    text = f"{__name__}.IN_THE_MODULE['of all'][0] ({__name__})"
    assert held_by(lambda: IN_THE_MODULE["of all"][0]) == text
    IN_THE_MODULE["of all"].clear()


@pytest.mark.one_backend
def test_an_object_in_an_attribute_of_a_class_is_found_by_its_name():
    class Registry:
        store: ClassVar = {"all": [Item()]}

    text = "Registry.store['all'][0] (a local of "
    assert held_by(lambda: Registry.store["all"][0]).startswith(text)


@pytest.mark.one_backend
def test_an_array_is_found_where_the_garbage_collector_knows_no_holder():
    callback = Holder()
    callback.pairs = [("loss", {"curve": np.zeros(3)})]
    gc.collect()
    text = "the callback Holder, in .pairs[0][1]['curve']"
    assert held_by(lambda: callback.pairs[0][1]["curve"]) == text


@pytest.mark.one_backend
def test_an_object_that_only_a_running_function_has_is_not_found():
    assert names([Item()]) == {}
