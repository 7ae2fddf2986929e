"""File ratios leave out the optimizer state, which has a figure of its own."""

import errno
import io
import json
import sys
import zipfile
import zlib
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from rich.console import Console

import kerasmem as km
from kerasmem.cli import main
from kerasmem.compression import measure
from kerasmem.errors import KerasMemWarning
from kerasmem.files.contents import file_size
from kerasmem.records.comparison import comparison_table, models_table
from kerasmem.report.plots import comparison_plot

pytestmark = pytest.mark.one_backend


def trained(units=48):
    """A dense network after one step of Adam, whose slots hold random values."""
    model = keras.Sequential(
        [keras.Input((32,)), keras.layers.Dense(units), keras.layers.Dense(8)]
    )
    model.compile("adam", "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(0)
    for slot in model.optimizer.variables[2:]:
        slot.assign(rng.normal(size=slot.shape))
    return model


def state_bytes(path):
    """Bytes of the optimizer's arrays in a stored file, by zipfile and h5py alone."""
    with zipfile.ZipFile(path) as archive:
        content = archive.read("model.weights.h5")
    with h5py.File(io.BytesIO(content)) as file:
        return sum(array.nbytes for array in file["optimizer/vars"].values())


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained().save("model.keras")
    return Path("model.keras")


def test_a_stored_file_has_the_state_that_h5py_counts(path):
    slots = 2 * 4 * (32 * 48 + 48 + 48 * 8 + 8)
    assert state_bytes(path) == slots + 12  # with the step counter and learning rate
    assert file_size(path) == (path.stat().st_size, slots + 12)


def test_a_deflated_file_has_the_state_that_deflate_leaves(path):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile("deflated.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with h5py.File(io.BytesIO(members["model.weights.h5"])) as file:
        arrays = [array[()].tobytes() for array in file["optimizer/vars"].values()]
    alone = sum(len(zlib.compress(array)) for array in arrays)
    size = file_size("deflated.keras")
    assert size.file_bytes == Path("deflated.keras").stat().st_size
    assert size.optimizer_file_bytes == pytest.approx(alone, rel=0.02)


def test_an_h5_file_has_the_same_state(path):
    model = keras.models.load_model(path)
    model.save("model.h5")
    with h5py.File("model.h5") as file:
        arrays = []
        file["optimizer_weights"].visititems(lambda _, item: arrays.append(item))
    expected = 2 * 4 * (32 * 48 + 48 + 48 * 8 + 8)
    size = file_size("model.h5").optimizer_file_bytes
    assert expected <= size <= expected + 12


def test_a_written_file_has_no_state(path):
    km.save_model(keras.models.load_model(path), "small.keras")
    assert file_size("small.keras") == (Path("small.keras").stat().st_size, 0)


@pytest.mark.parametrize("low_memory", [False, True])
def test_a_ratio_of_files_leaves_out_the_optimizer_state(path, low_memory):
    result = km.compress(
        path, km.Quantize("int8"), output="small.keras", low_memory=low_memory
    )
    before, after = result.report.before, result.report.after
    whole, small = path.stat().st_size, Path("small.keras").stat().st_size
    assert (before.file_bytes, after.file_bytes) == (whole, small)
    assert before.optimizer_file_bytes == state_bytes(path)
    ratio = (whole - state_bytes(path)) / small
    assert result.report.file_ratio == pytest.approx(ratio, rel=1e-12)
    assert ratio < 0.7 * whole / small


def test_a_model_in_memory_and_its_file_have_the_same_ratio(path):
    model = keras.models.load_model(path)
    in_memory = km.compress(model, km.Quantize("int8")).report
    by_path = km.compress(path, km.Quantize("int8")).report
    assert in_memory.before.optimizer_file_bytes == 0
    # HDF5 keeps a name and a header for every slot in the file.
    headers = 600 * len(model.optimizer.variables)
    difference = by_path.before.model_file_bytes - in_memory.before.file_bytes
    assert 0 <= difference < headers


def test_every_report_has_a_line_for_the_optimizer_state(path):
    result = km.compress(path, km.Quantize("int8"))
    report = result.report
    kib = f"{state_bytes(path) / 1024:.1f} KiB"
    models = {"before": report.before, "after": report.after}
    ratio = f"{report.file_ratio:.2f}x"
    text = io.StringIO()
    Console(file=text, width=150).print(comparison_table(models))
    card = result.model_card()
    rows = {row[0]: row for row in models_table(models).rows}
    label, line = "file without optimizer state", "optimizer state in the file"
    assert rows[label][3] == ratio
    assert rows[line][1:4] == (kib, "0 B", "")
    assert label in text.getvalue()
    assert f"| {line} | {kib} | 0 B | measured |" in card
    assert f"| {label} | " in card
    assert label in repr(comparison_plot(report))
    assert f"optimizer state in the original {kib}" in repr(result)


def call(capsys, monkeypatch, line):
    monkeypatch.setattr(sys, "argv", ["kerasmem", *line.split()])
    capsys.readouterr()
    assert main(line.split()) == 0
    return capsys.readouterr().out


def test_commands_report_the_optimizer_state(path, capsys, monkeypatch):
    state, whole = state_bytes(path), path.stat().st_size
    line = "compress model.keras -o small.keras --quantize int8"
    out = json.loads(call(capsys, monkeypatch, f"{line} --json"))
    small = Path("small.keras").stat().st_size
    assert out["report"]["before"]["optimizer_file_bytes"] == state
    assert out["file_ratio"] == pytest.approx((whole - state) / small)
    text = " ".join(call(capsys, monkeypatch, line).split())
    assert f"{state / 1024:.1f} KiB of it optimizer state." in text
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 32)), rng.normal(size=(20, 8))
    np.savez("data.npz", x=x.astype("float32"), y=y.astype("float32"))
    line = "compare model.keras small.keras --data data.npz --json"
    first, second = json.loads(call(capsys, monkeypatch, line))["figures"]
    assert (first["optimizer_file_bytes"], second["optimizer_file_bytes"]) == (state, 0)
    trained(units=4).save("student.keras")
    line = "distill model.keras student.keras -o taught.keras --data data.npz --json"
    figures = json.loads(call(capsys, monkeypatch, line))["figures"]
    assert figures["teacher"]["optimizer_file_bytes"] == state
    assert figures["student"]["optimizer_file_bytes"] == 0


def test_a_search_compares_files_without_optimizer_state(path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 32)).astype("float32")
    data = (x, keras.models.load_model(path).predict(x, verbose=0))
    target = {"file_bytes": path.stat().st_size - state_bytes(path)}
    result = km.compress(
        path, data=data, target=target, fine_tune_epochs=0, seed=0, verbose=0
    )
    report = result.report
    unchanged = report.search.trials[0]
    # The deflated file without state already meets the size of the weights.
    assert unchanged.costs["file_bytes"] < target["file_bytes"]
    assert report.after.file_bytes <= target["file_bytes"]


def test_a_full_temporary_folder_costs_a_figure_and_not_the_work(path, monkeypatch):
    model = keras.models.load_model(path)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("save_stored", "write_model"):
        monkeypatch.setattr(measure, name, full)
    output = path.parent / "small.keras"
    with pytest.warns(KerasMemWarning, match="No file size was measured.*TMPDIR"):
        result = km.compress(model, km.Quantize("int8"), output=output, verbose=0)
    report = result.report
    assert report.before.file_bytes is None
    assert report.after.file_bytes == output.stat().st_size
    with pytest.warns(KerasMemWarning, match="No file size was measured"):
        result = km.compress(model, km.Quantize("int8"), verbose=0)
    assert result.report.after.file_bytes is None
    assert "file" not in str(result.report)
