"""An archive that cannot be what it says is refused before anything in it is used."""

import zipfile

import pytest

import kerasmem as km
from kerasmem.errors import ModelFileError
from kerasmem.files import archive
from tests.models import L, chain

pytestmark = pytest.mark.one_backend


@pytest.fixture
def path(tmp_path):
    km.save_model(chain((6,), L.Dense(400)), tmp_path / "m.keras")
    return tmp_path / "m.keras"


def test_every_bit_that_flips_is_told_or_means_nothing(path):
    """The time of a member and the like mean nothing to a model."""
    whole = path.read_bytes()
    expected = km.load_model(path).get_weights()
    told = 0
    for place in range(0, len(whole), 211):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(bytes(flipped))
        try:
            archive.check_archive(path)
        except ModelFileError:
            told += 1
            continue
        loaded = km.load_model(path)
        assert [w.tolist() for w in loaded.get_weights()] == [
            w.tolist() for w in expected
        ]
    assert told > 0.9 * len(range(0, len(whole), 211))


@pytest.mark.parametrize("name", ["../up.txt", "/root.txt", "assets/../../up", "c:/x"])
def test_a_path_outside_of_the_archive_is_refused(path, name):
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(name, "text")
    with pytest.raises(ModelFileError, match="outside of its folder"):
        km.load_model(path)


def test_a_bomb_is_refused(path, monkeypatch):
    monkeypatch.setattr(archive, "_SMALL_BYTES", 1 << 20)
    km.load_model(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("assets/zeros", bytes(1 << 21))
    with pytest.raises(ModelFileError, match="would take 2097152 bytes"):
        km.load_model(path)


def test_many_small_bombs_are_one(path, monkeypatch):
    monkeypatch.setattr(archive, "_SMALL_BYTES", 1 << 20)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        for number in range(20):
            file.writestr(f"assets/{number}", bytes(1 << 18))
    with pytest.raises(ModelFileError, match="would take .* bytes, but the file has"):
        km.load_model(path)


def test_a_member_without_a_name_is_one_clear_line_or_nothing(path):
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("./", "")
    archive.check_archive(path)


def test_a_file_that_ends_early_is_refused(path):
    whole = path.read_bytes()
    for length in range(0, len(whole), 301):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"m\.keras"):
            km.load_model(path)
