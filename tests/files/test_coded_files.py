"""Files whose weights are coded by their entropy open in stock Keras, to the bit."""

import json
import zipfile
from contextlib import contextmanager

import h5py
import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, ModelFileError, OutputError
from kerasmem.files import weights
from kerasmem.graph.values import to_numpy
from kerasmem.stages import Progress
from tests.models import KINDS, L, chain


def coded(model, tmp_path, **how):
    path = tmp_path / "coded.keras"
    km.save_model(model, path, coding="entropy", **how)
    return path


def rewritten(tmp_path, coding):
    with h5py.File(tmp_path / "a.h5") as old:
        with weights.WeightsFile(tmp_path / "b.h5", coding, Progress("a", 9)) as file:
            words = file.put_rest(old)
        path = tmp_path / "b.h5"
        with h5py.File(path) as new:
            weights.check_weights(new, file.written, coding)
        names = []
        old.visititems(lambda name, item: names.append(name))
        is_group = {name: isinstance(old[name], h5py.Group) for name in names}
        assert {*file.written, *words} == {n for n in names if not is_group[n]}


def assert_same(model, loaded, x=None):
    assert type(loaded) is type(model)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    if x is not None:
        np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))


OF_EVERY_BACKEND = {"attention", "custom", "nested", "recurrent", "subclassed"}
"""The arrays in a file are the same; how layers within layers get them may not be."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=[] if kind in OF_EVERY_BACKEND else [pytest.mark.one_backend]
        )
        for kind in sorted(KINDS)
    ],
)
def test_stock_keras_opens_every_kind_of_model(kind, tmp_path):
    model = KINDS[kind].make()
    loaded = keras.models.load_model(coded(model, tmp_path))
    assert_same(model, loaded, KINDS[kind].inputs())
    assert "load_own_variables" not in vars(loaded)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "float16"])
def test_weights_of_16_bits_come_back(dtype, tmp_path):
    model = chain((6,), L.Dense(40, dtype=dtype), L.Dense(2, dtype=dtype))
    assert_same(model, keras.models.load_model(coded(model, tmp_path)))


@pytest.fixture
def trained():
    x = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
    model = chain((6,), L.Dense(50, activation="relu"), L.BatchNormalization())
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    model.fit(x, np.ones((16, 50)), verbose=0)
    return model


def test_the_compiled_state_comes_back(trained, tmp_path):
    x = np.random.default_rng(1).normal(size=(16, 6)).astype("float32")
    path = coded(trained, tmp_path, include_optimizer=True)
    loaded = keras.models.load_model(path)
    pairs = zip(trained.optimizer.variables, loaded.optimizer.variables, strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    assert loaded.evaluate(x, np.ones((16, 50)), verbose=0) == pytest.approx(
        trained.evaluate(x, np.ones((16, 50)), verbose=0)
    )
    assert not keras.models.load_model(path, compile=False).compiled
    # What was loaded is saved as any other model.
    loaded.save(tmp_path / "plain.keras")
    assert_same(trained, keras.models.load_model(tmp_path / "plain.keras"))


def test_a_text_with_its_vocabulary_comes_back(tmp_path):
    lookup = L.StringLookup(vocabulary=["a", "b", "c"])
    model = keras.Sequential([lookup, L.Embedding(5, 3)])
    if keras.backend.backend() != "tensorflow":
        model = keras.Sequential(
            [L.IntegerLookup(vocabulary=[3, 5]), L.Embedding(5, 3)]
        )
    model.build((None,))
    loaded = keras.models.load_model(coded(model, tmp_path))
    assert_same(model, loaded)
    assert loaded.layers[0].get_vocabulary() == model.layers[0].get_vocabulary()


@pytest.mark.one_backend
def test_codes_of_int8_are_coded_too(tmp_path):
    model = chain((300,), L.Dense(400), L.Dense(10))
    steps = [km.Prune(0.95), km.Quantize("int8")]
    small = km.compress(model, steps, coding="entropy")
    small.save(tmp_path / "small.keras")
    km.save_model(small.model, tmp_path / "deflated.keras")
    size = (tmp_path / "small.keras").stat().st_size
    assert size == pytest.approx(small.report.after.file_bytes, abs=8)
    assert size < 0.85 * (tmp_path / "deflated.keras").stat().st_size
    x = np.ones((2, 300), "float32")
    assert_same(small.model, keras.models.load_model(tmp_path / "small.keras"), x)


@pytest.mark.one_backend
def test_the_small_file_is_near_the_entropy_of_its_weights(tmp_path):
    model = chain((400,), L.Dense(500, use_bias=False))
    random = np.random.default_rng(0)
    kernel = np.sort(random.normal(size=16))[random.integers(0, 16, (400, 500))]
    kernel[random.random(kernel.shape) < 0.95] = 0.0
    model.set_weights([kernel.astype("float32")])
    share = np.mean(kernel != 0)
    bits = -share * np.log2(share) - (1 - share) * np.log2(1 - share) + 4 * share
    size = coded(model, tmp_path).stat().st_size
    assert kernel.size * bits / 8 < size < 1.02 * kernel.size * bits / 8 + 2500


@pytest.mark.one_backend
def test_a_weight_that_looks_like_a_code_is_one_all_the_same(tmp_path):
    dataset = np.frombuffer(weights.encode(np.arange(3)), np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["w"] = dataset
        file["text"] = "a string"
    rewritten(tmp_path, "entropy")
    with h5py.File(tmp_path / "b.h5") as file:
        np.testing.assert_array_equal(weights.uncoded(file["w"][()]), dataset)


@pytest.mark.one_backend
def test_what_is_not_read_back_as_it_was_is_not_written(trained, tmp_path, monkeypatch):
    path = coded(trained, tmp_path)
    before = path.read_bytes()
    encode = weights.encode
    monkeypatch.setattr(weights, "encode", lambda array: encode(np.roll(array, 1)))
    with pytest.raises(OutputError, match="stored value of the weight .* differs"):
        coded(trained, tmp_path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["coded.keras"]


@contextmanager
def members(path):
    """Give the members of an archive by name, and write it anew with them."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    yield found
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in found.items():
            archive.writestr(name, member)


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_a_code_that_was_damaged_is_one_clear_line(tmp_path):
    path = coded(chain((60,), L.Dense(50)), tmp_path)
    with members(path) as found:
        content = bytearray(found["model.weights.h5"])
        content[content.index(b"KMC1") + 40] ^= 1
        found["model.weights.h5"] = bytes(content)
    with pytest.raises(ModelFileError, match="coded weights in the file are damaged"):
        km.load_model(path)


@pytest.mark.one_backend
def test_the_class_in_the_file_holds_only_what_keras_wrote(trained, tmp_path):
    trained.save(tmp_path / "plain.keras")
    configs = []
    for path in (tmp_path / "plain.keras", coded(trained, tmp_path)):
        with zipfile.ZipFile(path) as archive:
            configs.append(json.loads(archive.read("config.json")))
    plain, outer = configs
    inner = outer["config"]["model"] | {"compile_config": outer["compile_config"]}
    assert inner == plain


@pytest.mark.one_backend
def test_what_is_no_model_is_refused(trained, tmp_path):
    path = coded(trained, tmp_path)
    dense = keras.saving.serialize_keras_object(L.Dense(3))
    with members(path) as found:
        config = json.loads(found["config.json"])
        config |= {"config": {"model": dense}, "compile_config": None}
        found["config.json"] = json.dumps(config).encode()
    with pytest.raises(
        ModelFileError, match="A file of coded weights contains no model"
    ):
        km.load_model(path)


@pytest.mark.one_backend
def test_an_array_too_small_in_its_code_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "LARGE_BYTES", 1 << 12)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["zeros"], file["some"] = np.zeros(1 << 20), np.zeros(1 << 8)
    rewritten(tmp_path, "entropy")
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["zeros"].shape == (1 << 20,)
        assert file["some"].dtype == np.uint8


@pytest.mark.one_backend
def test_code_in_a_coded_file_is_never_run(tmp_path):
    model = chain((6,), L.Lambda(lambda x: x + 1), L.Dense(3))
    with pytest.raises(ModelFileError, match="code in a file is never executed"):
        km.load_model(coded(model, tmp_path))


@pytest.mark.one_backend
def test_a_coding_that_is_not_known_is_one_clear_line(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"must be one of .* Received: .*'zip'"):
        km.save_model(trained, tmp_path / "m.keras", coding="zip")
    with pytest.raises(ConfigError, match="`coding` of .* must be one of"):
        km.compress(trained, km.Prune(0.5), coding="zip")
    assert not list(tmp_path.iterdir())


@pytest.mark.one_backend
def test_floats_are_shuffled_where_that_deflates_better(tmp_path):
    random = np.random.default_rng(0)
    dense = random.normal(size=(300, 400)).astype("float32")
    sparse = np.where(random.random(dense.shape) < 0.9, 0, dense)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["dense"], file["sparse"], file["one"] = dense, sparse, 1.0
        file.create_group("group").create_group("within").attrs["of"] = "a layer"
        file["group/within/w"], file.attrs["of"] = 2.0, "a file"
    rewritten(tmp_path, "deflate")
    with h5py.File(tmp_path / "b.h5") as file:
        assert [file[name].shuffle for name in ("dense", "sparse", "one")] == [
            True,
            False,
            False,
        ]
        assert file["group/within"].attrs["of"] == "a layer"
        assert (file["group/within/w"][()], file.attrs["of"]) == (2.0, "a file")
        assert file["dense"].id.get_storage_size() < 0.88 * dense.nbytes


@pytest.mark.one_backend
def test_a_large_file_is_stored_in_pieces_that_stock_keras_reads_to_the_bit(tmp_path):
    path = tmp_path / "large.keras"
    model = chain((1200,), L.Dense(1300), L.Dense(700))
    km.save_model(model, path)
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("model.weights.h5")
    assert member.compress_type == zipfile.ZIP_STORED
    assert member.file_size < 0.88 * 4 * model.count_params()
    assert_same(model, keras.models.load_model(path))
    assert_same(model, km.load_model(path))
    before = path.read_bytes()
    km.save_model(model, path)
    assert len(path.read_bytes()) == len(before)
