"""Every byte of a file is counted once, and each weight's are its own."""

import io
import pathlib
import tempfile
import zipfile
import zlib

import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ModelFileError
from kerasmem.files import inspect_file
from kerasmem.files.contents import deflated_places
from tests.models import KINDS, L, chain

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize("level", [0, 1, 9])
def test_the_share_of_a_mark_in_a_stream_is_exact_to_16_bytes(level):
    content = np.random.default_rng(0).normal(size=9_000).round(1).tobytes()
    deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    stream = deflate.compress(content) + deflate.flush()
    marks = [0, 5, 4_000, 4_001, 71_990, 72_000, 80_000]
    places = deflated_places(io.BytesIO(b"ab" + stream), 2, len(stream), marks)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    inflated, read, expected = 0, 0, {}
    for mark in marks:
        while inflated < mark and read < len(stream):
            inflated += len(inflate.decompress(stream[read : read + 1]))
            read += 1
        expected[mark] = read
    assert places.keys() == expected.keys()
    assert all(0 <= places[mark] - expected[mark] <= 16 for mark in marks)


SIZES = 2 * 300 + 300, 300 * 40 + 40


def model_of(random):
    model = chain((2,), L.Dense(300, name="noise"), L.Dense(40, name="zeros"))
    model.compile("adam", "mse")
    noise, bias, zeros, ones = model.get_weights()
    noise, zeros = random.normal(size=noise.shape), np.zeros(zeros.shape)
    model.set_weights([noise, bias, zeros, ones + 1])
    return model


@pytest.fixture
def model():
    return model_of(np.random.default_rng(0))


def around(path):
    """What a zip archive has beside its members, by its specification."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        total = 22 + len(archive.comment)
        for member in archive.infolist():
            file.seek(member.header_offset + 26)
            name, extra = np.frombuffer(file.read(4), "<u2")
            total += 30 + int(name) + int(extra)
            total += 46 + len(member.filename) + len(member.extra)
        return total


@pytest.mark.parametrize("coding", ["deflate", "entropy", "stored"])
def test_the_parts_of_a_file_are_the_whole_of_it(model, coding, tmp_path):
    path = tmp_path / "m.keras"
    km.save_model(model, path, coding=coding)
    found = inspect_file(path)
    parts = sum(each.file_bytes for each in found.tensors) + sum(found.other.values())
    assert parts == found.file_bytes == pathlib.Path(path).stat().st_size
    assert min(found.other.values()) > 0
    assert found.other["archive"] == around(path)
    with zipfile.ZipFile(path) as archive:
        config = archive.getinfo("config.json").compress_size
    assert found.other["config.json"] == config
    own = {t.name: t for t in found.tensors if not t.name.startswith("optimizer/")}
    assert sorted(own) == ["noise/0", "noise/1", "zeros/0", "zeros/1"]
    assert [own[n].weight_bytes for n in sorted(own)] == [2400, 1200, 48000, 160]
    assert own["zeros/0"].shape == (300, 40)
    assert {t.dtype for t in own.values()} == {"float32"}


def test_each_weight_has_the_bytes_that_its_content_needs(model, tmp_path):
    """Noise cannot be deflated much, zeros can; a stored weight takes what it is."""
    sizes = {}
    for coding in ("deflate", "entropy", "stored"):
        km.save_model(model, tmp_path / "m.keras", coding=coding)
        found = inspect_file(tmp_path / "m.keras").tensors
        sizes[coding] = {each.name: each for each in found}
    assert found[0].name == "noise/0"
    assert sizes["stored"]["noise/0"].file_bytes == 2400
    assert sizes["stored"]["zeros/0"].file_bytes == 0
    assert sizes["stored"]["zeros/0"].coding == "zeros"
    for coding in ("deflate", "entropy"):
        assert 2000 < sizes[coding]["noise/0"].file_bytes < 2500
        assert sizes[coding]["zeros/0"].file_bytes < 200
    assert sizes["entropy"]["noise/0"].coding == "entropy"
    assert sizes["deflate"]["noise/0"].coding == "deflated"


def test_more_noise_in_one_weight_is_more_bytes_of_that_one(tmp_path):
    """The file without the noise is smaller by what the weight is said to take."""
    random, path = np.random.default_rng(1), tmp_path / "m.keras"
    model = chain((80,), L.Dense(90, name="a"), L.Dense(50, name="b"))
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    km.save_model(model, path)
    full = inspect_file(path)
    model.layers[1].kernel.assign(np.zeros((80, 90)))
    km.save_model(model, path)
    empty = inspect_file(path)
    (kernel,) = (each for each in full.tensors if each.name == "a/0")
    assert full.file_bytes - empty.file_bytes == pytest.approx(
        kernel.file_bytes, rel=0.02
    )


@pytest.mark.parametrize("name", ["nested", "attention", "subclassed", "bidirectional"])
def test_layers_within_layers_have_names(name, tmp_path):
    model = KINDS[name].make()
    km.save_model(model, tmp_path / "m.keras")
    found = inspect_file(tmp_path / "m.keras").tensors
    assert len({each.name for each in found}) == len(found) == len(model.weights)
    assert sum(each.weight_bytes for each in found) == sum(
        4 * int(np.prod(w.shape)) for w in model.weights
    )
    assert not any("vars" in each.name for each in found)


def test_an_h5_file_and_one_that_is_large_shuffled(tmp_path):
    model = chain((300,), L.Dense(200, name="a"))
    model.save(tmp_path / "m.h5")
    found = inspect_file(tmp_path / "m.h5")
    assert found.tensors[0].file_bytes == 4 * 300 * 200
    rest = sum(found.other.values()) + sum(t.file_bytes for t in found.tensors)
    assert rest == pathlib.Path(tmp_path / "m.h5").stat().st_size
    km.save_model(model, tmp_path / "m.keras")
    kernel = inspect_file(tmp_path / "m.keras").tensors[0]
    assert (kernel.name, kernel.coding) == ("a/0", "shuffled, deflated")
    assert 0.8 * 240_000 < kernel.file_bytes < 240_000


def test_damaged_files_are_one_clear_line_and_read_only_folders_none(
    tmp_path, monkeypatch
):
    model, path = chain((30,), L.Dense(200)), tmp_path / "m.h5"
    model.save(path)
    path.write_bytes(path.read_bytes()[:-9000])
    with pytest.raises(ModelFileError, match=r"m\.h5' is damaged"):
        inspect_file(path)
    km.save_model(model, tmp_path / "m.keras")
    opened = tempfile.TemporaryFile

    def nowhere_else(dir=None):  # noqa: A002 - as in tempfile
        if dir is not None:
            raise PermissionError
        return opened()

    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere_else)
    assert len(inspect_file(tmp_path / "m.keras").tensors) == 2


def test_what_is_no_model_file_is_one_clear_line(tmp_path):
    (tmp_path / "m.keras").write_text("no model")
    with pytest.raises(
        ModelFileError, match=r"Expected a complete model file.*m\.keras"
    ):
        inspect_file(tmp_path / "m.keras")
