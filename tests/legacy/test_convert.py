"""`kerasmem convert` writes what answers as before, or nothing."""

import importlib.util
import json
import subprocess

import numpy as np
import pytest

import kerasmem as km
from kerasmem.cli import main
from tests.models import L, chain

pytestmark = pytest.mark.one_backend


@pytest.fixture
def convert(tmp_path, capsys):
    def run(path, *more):
        out = tmp_path / "new.keras"
        code = main(["convert", str(path), "-o", str(out), "--json", *more])
        streams = capsys.readouterr()
        return code, json.loads(streams.out or "{}"), streams.err, out

    return run


def test_answers_are_compared_with_those_of_tf_keras_and_tfmot(
    written, recorded, convert
):
    code, data, _, out = convert(written / "pruned.h5")
    assert code == 0
    assert data["not_compared"] is None
    assert 0 < data["largest_difference"] < 1e-5
    x, (y,) = recorded("pruned")
    np.testing.assert_allclose(
        np.asarray(km.load_model(out).predict(x, verbose=0)), y, atol=1e-5
    )


def test_what_answers_otherwise_is_not_written(written, convert, monkeypatch):
    def answers(path, inputs, *, with_tfmot):
        assert not with_tfmot
        assert [array.shape for array in inputs] == [(4, 6)]
        return [np.full((4, 3), 0.5, "float32")]

    monkeypatch.setattr("kerasmem.extras.legacy.comparison.answers_of_keras_2", answers)
    code, _, err, out = convert(written / "dense.h5")
    assert code == 2
    assert "differ from those computed by tf_keras" in err
    assert not out.exists()


def test_where_nothing_can_be_compared_that_is_said(written, convert, monkeypatch):
    _, data, _, out = convert(written / "lstm")
    assert "SavedModel are never run" in data["not_compared"]
    assert out.exists()
    _, data, _, _ = convert(written / "dense.keras", "--no-compare")
    assert data["not_compared"] == "--no-compare was passed"
    _, data, err, _ = convert(written / "quantized.h5")
    assert "rounds" in data["not_compared"]
    assert "without rounding" in err
    ended = subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: Unknown\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    _, data, _, _ = convert(written / "dense.keras")
    assert "tf_keras failed: ValueError: Unknown" in data["not_compared"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _, data, _, _ = convert(written / "dense.keras")
    assert "tf_keras is not installed" in data["not_compared"]


def test_a_file_of_keras_3_needs_no_conversion(convert, tmp_path):
    chain((4,), L.Dense(2)).save(tmp_path / "m.keras")
    code, _, err, out = convert(tmp_path / "m.keras")
    assert code == 2
    assert "so no conversion is needed" in err
    assert not out.exists()


def test_the_other_commands_take_the_folder_of_a_saved_model(written, capsys):
    assert main(["inspect", str(written / "lstm"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    files = [p for p in (written / "lstm").rglob("*") if p.is_file()]
    assert data["file_bytes"] == sum(file.stat().st_size for file in files)
    assert data["parameters"] == 11 * 4 + 4 * 5 * (4 + 5 + 1) + 4 * 4 * (5 + 4 + 1) + 10
