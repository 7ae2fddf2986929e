"""What a file tells of its weights is compared with the model before it is read."""

import json
import zipfile

import h5py
import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ModelFileError
from kerasmem.files import datasets
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain

CODINGS = ["deflate", "entropy", "stored"]


def kinds_for(coding, codings=CODINGS):
    """Return kinds of models: those of all codings are every kind, each once."""
    return sorted(KINDS)[codings.index(coding) :: len(codings)]


@pytest.fixture
def always_inflates(monkeypatch):
    monkeypatch.setattr(datasets, "_LARGE_BYTES", 0)
    monkeypatch.setattr(datasets, "_MOST_TIMES", 0)


@pytest.fixture
def nothing_is_free(monkeypatch):
    monkeypatch.setattr(datasets, "_FREE_ENTRIES", 0)


def assert_same(model, loaded):
    assert type(loaded) is type(model)
    for a, b in zip(model.weights, loaded.weights, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("coding", CODINGS)
def test_weights_are_read_one_by_one_to_the_bit(coding, always_inflates, tmp_path):
    for kind in kinds_for(coding):
        model, path = KINDS[kind].make(), tmp_path / f"{coding}.keras"
        km.save_model(model, path, coding=coding)
        assert_same(model, km.load_model(path))


def test_the_state_of_an_optimizer_is_read_too(always_inflates, tmp_path):
    model = chain((6,), L.Dense(40, dtype="bfloat16"), L.Dense(2))
    model.compile("adam", "mse", jit_compile=False)
    model.fit(np.ones((8, 6)), np.ones((8, 2)), verbose=0)
    km.save_model(model, tmp_path / "m.keras", include_optimizer=True)
    loaded = km.load_model(tmp_path / "m.keras")
    assert_same(model, loaded)
    pairs = zip(model.optimizer.variables, loaded.optimizer.variables, strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))


@pytest.mark.parametrize("coding", CODINGS[:2])
def test_a_file_has_the_weights_that_its_model_gets(coding, nothing_is_free, tmp_path):
    path = tmp_path / "m.keras"
    for kind in kinds_for(coding, CODINGS[:2]):
        km.save_model(KINDS[kind].make(), path, coding=coding)
        km.load_model(path)
    model = chain((64,), L.Dense(64), L.Dense(3))
    for scheme in ("int8", "int4"):
        small = km.compress(model, km.Quantize(scheme), coding=coding)
        small.save(path)
        assert_same(small.model, km.load_model(path))


@pytest.mark.one_backend
def test_a_layer_gets_no_memory_for_weights_that_are_not_there(tmp_path):
    model = chain((6,), L.Dense(4))
    config = model.get_config()
    config["layers"][1]["config"]["units"] = 1_000_000_000
    model.save(tmp_path / "m.keras")
    path = tmp_path / "m.keras"
    add_weight = keras.Layer.add_weight
    with (
        pytest.raises(ModelFileError, match=r"at least 6000000000 weight entries"),
        datasets.bounded_weights(path),
    ):
        keras.Model.from_config(config)
    assert keras.Layer.add_weight is add_weight


@keras.saving.register_keras_serializable("test_declared")
class Repeated(keras.Model):
    """Makes a layer for each of a number in its config, like a transformer."""

    def __init__(self, num_layers, **options):
        super().__init__(**options)
        self.num_layers = num_layers
        self.parts = [L.Dense(1) for _ in range(num_layers)]

    def build(self, shape):
        for part in self.parts:
            part.build((None, 1))

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers}


@pytest.mark.one_backend
def test_a_number_of_layers_is_compared_with_the_arrays_in_the_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(datasets, "_FREE_LAYERS", 8)
    path = tmp_path / "m.keras"
    model = Repeated(12)
    model(np.ones((1, 1)))
    model.save(path)
    assert len(km.load_model(path).parts) == 12
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    config["config"]["num_layers"] = 1_000_000_000
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ModelFileError, match="105 layers.* its file has 24 arrays"):
        km.load_model(path)
    assert keras.Layer.__init__.__qualname__ == "Layer.__init__"


@pytest.mark.one_backend
def test_sizes_of_an_hdf5_file_are_compared_with_its_own(tmp_path):
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (1 << 14, 1 << 14), "f4", chunks=(64, 64))
    with h5py.File(path) as file:
        assert datasets.inflates(file, path.stat().st_size)
        with pytest.raises(
            ModelFileError, match="would take 1073741824 bytes: .*file has 0"
        ):
            datasets.check_declared(path, file)


@pytest.mark.one_backend
def test_a_heap_of_texts_that_leads_to_itself_is_not_followed(tmp_path):
    model, path = chain((3,), L.Dense(2)), tmp_path / "model.h5"
    model.save(path)
    content = bytearray(path.read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 16 : heap + 64] = bytes(48)
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="a heap of strings is cyclic"):
        km.load_model(path)


@pytest.mark.one_backend
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_what_follows_the_end_of_an_hdf5_file_is_not_read(tmp_path, libver):
    path = tmp_path / "m.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file.attrs["name"] = "a text"
    with path.open("ab") as file:
        file.write(b"GCOL\x01\0\0\0" + (4096).to_bytes(8, "little") + bytes(4096))
    datasets.check_heaps(path)
