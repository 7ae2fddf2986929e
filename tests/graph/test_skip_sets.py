"""What Keras passes over in layers is looked up once, and its files are the same."""

import zipfile

import h5py
import keras
import numpy as np
import pytest
from keras.src.backend.common import global_state  # noqa: TID251

import kerasmem as km
from kerasmem.graph.skip_sets import skip_sets

L = keras.layers
pytestmark = pytest.mark.one_backend


@pytest.fixture
def made(monkeypatch):
    """A list of the layers that Keras makes to look at what layers have."""
    found = []

    class Counted(L.Layer):
        def __init__(self):
            found.append(self)
            super().__init__()

    # Keras looks for the class at this place each time.
    monkeypatch.setattr("keras.src.layers.layer.Layer", Counted)
    return found


def network():
    inner = keras.Sequential([keras.Input((8,)), L.Dense(8, name="in"), L.ReLU()])
    x = inputs = keras.Input((8,))
    for _ in range(20):
        x = L.Dense(8)(x)
    return keras.Model(inputs, inner(x))


def arrays(path):
    found = {}

    def keep(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as member:
        h5py.File(member).visititems(keep)
    return found


def test_the_file_has_the_same_and_few_layers_are_made_for_it(tmp_path, made):
    model = network()
    model.save(tmp_path / "keras.keras")
    assert len(made) > 20  # else Keras does by itself what the scope does
    made.clear()
    with skip_sets():
        model.save(tmp_path / "ours.keras")
    assert len(made) <= 4
    expected, found = (arrays(tmp_path / f"{name}.keras") for name in ("keras", "ours"))
    assert found.keys() == expected.keys()
    assert len(found) == 42
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


def test_saving_and_opening_make_few(tmp_path, made):
    model = network()
    km.save_model(model, tmp_path / "model.keras")
    opened = km.load_model(tmp_path / "model.keras")
    assert len(made) <= 12
    for ours, theirs in zip(opened.weights, model.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_nothing_stays_after_it_or_an_error():
    keys = [f"saving_attr_skiplist_{kind}" for kind in ("Layer", "Operation")]
    before = [global_state.get_global_attribute(key) for key in keys]
    with pytest.raises(KeyError), skip_sets():
        assert all(global_state.get_global_attribute(key) for key in keys)
        raise KeyError
    assert [global_state.get_global_attribute(key) for key in keys] == before
