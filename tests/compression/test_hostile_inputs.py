"""Inputs whose files lead elsewhere, or change while they are read."""

import json
import os
import shutil
import zipfile
from pathlib import Path

import keras
import pytest

import kerasmem as km
from kerasmem.compression import presets, writers
from kerasmem.errors import ConfigError, ModelFileError
from kerasmem.records.regular import check_output, check_parent

pytestmark = pytest.mark.one_backend
SECRET = "-----BEGIN PRIVATE KEY-----"


@pytest.fixture
def model_file(tmp_path):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64)])
    model.save(tmp_path / "m.keras")
    return tmp_path / "m.keras"


@pytest.fixture
def preset(model_file, tmp_path):
    """A folder with the files of a preset, as in the cache of the Hugging Face Hub."""
    folder = tmp_path / "hub" / "snapshots" / "1"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(model_file) as archive:
        archive.extractall(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "assets").mkdir()
    (folder / "assets" / "words.txt").write_text("a b")
    return folder


def contents(folder):
    files = (file for file in Path(folder).rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def compressed(source, output):
    return km.compress(source, km.Quantize("int8"), output=output, low_memory=True)


@pytest.mark.parametrize("place", ["tokenizer.json", "assets/words.txt", "notes"])
@pytest.mark.parametrize("how", ["file", "folder", "up", "nothing", "round"])
def test_a_link_out_of_a_preset_is_refused(place, how, preset, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_text(SECRET)
    targets = {"file": home / "key", "folder": home, "nothing": tmp_path / "none"}
    targets |= {"up": Path(os.path.relpath(home / "key", (preset / place).parent))}
    (preset / place).unlink(missing_ok=True)
    (preset / place).symlink_to(targets.get(how, preset / place))
    with pytest.raises(ModelFileError, match="is a link out of the model's folder"):
        compressed(preset, tmp_path / "out")
    with pytest.raises(ModelFileError, match="is a link out of the model's folder"):
        km.load_model(preset)
    assert not (tmp_path / "out").exists()


def test_links_in_a_preset_and_to_blobs_beside_it_are_copied(preset, tmp_path):
    blobs = preset.parent.parent / "blobs"
    blobs.mkdir()
    before = contents(preset)
    for number, name in enumerate(before):
        file = preset / name
        file.rename(blobs / str(number))
        file.symlink_to(os.path.relpath(blobs / str(number), file.parent))
    (preset / "again.json").symlink_to("tokenizer.json")
    compressed(preset, tmp_path / "out")
    after = contents(tmp_path / "out")
    assert after.keys() == before.keys() | {"again.json"}
    assert after["again.json"] == after["tokenizer.json"] == b"{}"
    assert not any(file.is_symlink() for file in (tmp_path / "out").rglob("*"))


def test_a_link_in_assets_beside_weights_is_refused(preset, tmp_path):
    (tmp_path / "key").write_text(SECRET)
    (preset / "assets" / "words.txt").unlink()
    (preset / "assets" / "words.txt").symlink_to(tmp_path / "key")
    with pytest.raises(ModelFileError, match="is a link out of the model's folder"):
        compressed(preset / "model.weights.h5", tmp_path / "out.keras")
    shutil.rmtree(preset / "assets")
    (preset / "assets").symlink_to(tmp_path)
    with pytest.raises(ModelFileError, match="is a link out of the model's folder"):
        compressed(preset / "model.weights.h5", tmp_path / "out.keras")


def test_an_empty_file_of_weights_is_refused(preset, tmp_path):
    (preset / "model.weights.h5").write_bytes(b"")
    with pytest.raises(ModelFileError, match="is damaged: it is empty"):
        compressed(preset, tmp_path / "out")


def test_a_shard_that_links_elsewhere_is_refused(preset, tmp_path):
    (preset / "model.weights.h5").rename(tmp_path / "shard.weights.h5")
    (preset / "shard.weights.h5").symlink_to(tmp_path / "shard.weights.h5")
    index = {"weight_map": {"a": "shard.weights.h5"}}
    (preset / "x.weights.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="is a link out of the model's folder"):
        compressed(preset / "x.weights.json", tmp_path / "out.keras")


@pytest.mark.parametrize("name", ["out", "out.keras", "assets/out", "."])
@pytest.mark.parametrize("low_memory", [True, False])
def test_an_output_inside_the_input_is_refused(name, low_memory, preset, tmp_path):
    before = contents(preset)
    (tmp_path / "link").symlink_to(preset)
    inside = "The output is inside the input folder"
    message = "but the path exists" if name == "." else inside
    for folder in (preset, tmp_path / "link"):
        with pytest.raises(ConfigError, match=message):
            km.compress(
                preset, km.Prune(0.5), output=folder / name, low_memory=low_memory
            )
    assert contents(preset) == before


def in_place(path):
    with path.open("r+b") as file:
        file.write(file.read(1))


def replaced(path):
    shutil.copy2(path, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("change", [in_place, replaced, Path.unlink])
@pytest.mark.parametrize("source", ["model", "weights", "config", "asset"])
def test_an_input_that_changes_while_it_is_read_is_refused(
    change, source, model_file, preset, tmp_path, monkeypatch
):
    changed = {
        "model": model_file,
        "weights": preset / "model.weights.h5",
        "config": preset / "config.json",
        "asset": preset / "tokenizer.json",
    }[source]
    check = writers.check

    def check_and_change(*arguments):
        check(*arguments)
        change(changed)

    for module in (presets, writers):
        monkeypatch.setattr(module, "check", check_and_change)
    path, name = (model_file, "o.keras") if source == "model" else (preset, "out")
    with pytest.raises(ModelFileError, match=f"{changed.name}' changed while it was"):
        compressed(path, tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["a\0b.keras", "a" * 300 + ".keras", "r.keras"])
def test_an_output_that_cannot_be_a_file_is_refused(name, model_file, tmp_path):
    (tmp_path / "r.keras").symlink_to("r.keras")
    output = tmp_path / name
    with pytest.raises(ConfigError, match="The output path is invalid"):
        check_output(output, ".keras")
    with pytest.raises(ConfigError, match="The output path is invalid"):
        check_parent(output)
    with pytest.raises(km.errors.OutputError, match="Could not write"):
        km.save_model(km.load_model(model_file), output)
