"""One small trained model and its data, in files, and `kerasmem` called on them."""

import json
import shutil
import sys

import keras
import numpy as np
import pytest

from kerasmem.cli import main

SHAPE, CLASSES, SAMPLES = 6, 3, 60


@pytest.fixture
def samples():
    return arrays()


@pytest.fixture
def new_network():
    return network


def arrays():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES, SHAPE)).astype("float32")
    return x, x[:, :CLASSES].argmax(axis=1).astype("int32")


def network(units=32, *, compiled=True):
    model = keras.Sequential(
        [
            keras.Input((SHAPE,), name="features"),
            keras.layers.Dense(units, activation="relu", name="hidden"),
            keras.layers.Dense(CLASSES, activation="softmax", name="classes"),
        ]
    )
    if compiled:
        model.compile(
            "adam",
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            jit_compile=False,
        )
    return model


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    keras.utils.set_random_seed(7)
    network().save(folder / "model.keras")
    x, y = arrays()
    np.savez(folder / "data.npz", x=x, y=y)
    split = {"x_train": x[10:], "y_train": y[10:], "x_test": x[:10], "y_test": y[:10]}
    np.savez(folder / "split.npz", **split)
    return folder


@pytest.fixture
def folder(written, tmp_path, monkeypatch):
    """The current folder, with model.keras and data.npz in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path


class Call:
    """What one call of `kerasmem` gave."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def kerasmem(capsys, monkeypatch):
    def call(line):
        arguments = line.split()
        monkeypatch.setattr(sys, "argv", ["kerasmem", *arguments])
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
        return Call(code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(kerasmem, tmp_path):
    """Call `kerasmem`; it must fail in one line and leave the folder as it was."""

    def call(line, unsaid="error:", code=2):
        before = {path: path.read_bytes() for path in files(tmp_path)}
        result = kerasmem(line)
        assert result.code == code
        assert result.out == ""
        progress, message = split_at_last_line(result.err)
        assert message.startswith("kerasmem")
        assert "error:" not in progress
        assert unsaid not in progress
        assert {path: path.read_bytes() for path in files(tmp_path)} == before
        return message

    return call


def split_at_last_line(text):
    assert text.endswith("\n")
    progress, _, last = text[:-1].rpartition("\n")
    return progress, last


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]
