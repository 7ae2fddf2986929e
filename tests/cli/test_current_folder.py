"""Code in the current folder runs only if `--import` or `--data` names it."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from kerasmem.processes import answer_of_child

pytestmark = pytest.mark.one_backend

TRAP = "open('PWNED', 'w').close()"
COMMAND = Path(sysconfig.get_path("scripts"), "kerasmem")


@pytest.fixture
def trap(monkeypatch, folder):
    """Write modules that leave a file behind if they are imported."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(*names):
        for name in names:
            Path(name).with_suffix(".py").write_text(TRAP)

    return write


@pytest.mark.usefixtures("new_interpreter")
@pytest.mark.parametrize("start", ["kerasmem", "python -m kerasmem"])
def test_a_command_ignores_modules_in_the_current_folder(start, trap):
    trap("h5py", "keras", "numpy", "yaml", "rich", "psutil", "tensorflow")
    command = [COMMAND] if start == "kerasmem" else [sys.executable, "-m", "kerasmem"]
    ended = subprocess.run(
        [*command, "inspect", "model.keras"],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
    )
    assert ended.returncode == 0, ended.stderr
    assert not Path("PWNED").exists()


def test_a_config_imports_no_module_of_the_current_folder(trap, refused):
    trap("keras_cv")
    with zipfile.ZipFile("model.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    layer = config["config"]["layers"][1]
    layer |= {"module": "keras_cv.layers", "registered_name": "DropPath"}
    layer["class_name"] = "DropPath"
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile("model.keras", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    refused("inspect model.keras")
    assert not Path("PWNED").exists()


def test_an_imported_module_replaces_no_module_of_python(trap, kerasmem):
    trap("colorsys")
    sys.modules.pop("colorsys", None)
    path = list(sys.path)
    assert kerasmem("inspect model.keras --import colorsys").code == 0
    assert not Path("PWNED").exists()
    assert sys.path == path


def test_a_data_function_may_be_in_the_current_folder(folder, kerasmem):
    source = "import numpy\n\ndef load():\n    a = numpy.load('data.npz')\n"
    Path("own_samples.py").write_text(f"{source}    return a['x'], a['y']\n")
    try:
        call = kerasmem("evaluate model.keras --data own_samples:load")
    finally:
        sys.modules.pop("own_samples", None)
    assert call.code == 0, call.err


@pytest.mark.usefixtures("new_interpreter")
@pytest.mark.parametrize("way", ["-c", "-m"])
def test_a_child_imports_nothing_of_the_current_folder(way, trap, folder):
    trap("json", "numpy")
    code = "import json, sys; open(sys.argv[1], 'w').close()"
    (folder / "home").mkdir()
    (folder / "home" / "child_for_test.py").write_text(code)
    ended = answer_of_child(
        [way, {"-c": code, "-m": "child_for_test"}[way], str(folder / "answer")],
        "test",
        folder / "answer",
        environment={"PYTHONPATH": str(folder / "home")},
    )
    assert ended == b""
    assert not Path("PWNED").exists()
