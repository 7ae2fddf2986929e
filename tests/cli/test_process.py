"""What only a process of its own shows: streams, imports, and the demo as it is run."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasmem.files.load import hard_sigmoid_of_keras_2

pytestmark = pytest.mark.usefixtures("new_interpreter")
ROOT = Path(__file__).parents[2]
VERSION = importlib.metadata.version("kerasmem")


def python(*arguments, **environment):
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | environment,
    )


def run(*arguments, **environment):
    return python("-m", "kerasmem", *arguments, **environment)


def test_the_program_writes_json_alone_to_stdout(folder):
    done = run("inspect", "model.keras", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["model"] == "model.keras"
    assert done.stderr == ""


@pytest.mark.one_backend
def test_the_program_fails_with_one_line_and_code_2():
    done = run("inspect", "model.keras", "--batch-size", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "kerasmem inspect: error: argument --batch-size: expected a whole number from "
        "1, received '0'. See: kerasmem inspect --help\n"
    )


@pytest.mark.one_backend
def test_a_backend_that_keras_does_not_know_is_one_line(tmp_path):
    (tmp_path / "model.keras").touch()
    done = run("inspect", str(tmp_path / "model.keras"), KERAS_BACKEND="foo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "kerasmem: error: Keras cannot start: ValueError: Unable to import backend : "
        "foo. Expected: one of tensorflow, jax, torch installed. Received: "
        "KERAS_BACKEND='foo'.\n"
    )


@pytest.mark.one_backend
def test_a_backend_that_is_not_installed_comes_with_its_command(tmp_path):
    (tmp_path / "model.keras").touch()
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError('No jax', name='jax')")
    given = {"KERAS_BACKEND": "jax", "PYTHONPATH": str(tmp_path)}
    done = run("inspect", str(tmp_path / "model.keras"), **given)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "Received: KERAS_BACKEND='jax'. Next: pip install kerasmem[jax].\n"
    )


@pytest.mark.one_backend
def test_the_version_is_printed_and_nothing_else():
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"kerasmem {VERSION}\n",
        "",
    )


@pytest.mark.one_backend
def test_keras_opens_files_with_parts_of_ours_after_an_import_of_kerasmem(
    folder, kerasmem
):
    assert kerasmem("compress model.keras -o int8.keras --quantize int8").code == 0
    # As a model of Keras 2 is saved; the room that converts one is not imported for it.
    top = keras.layers.Dense(2, activation=hard_sigmoid_of_keras_2)
    keras.Sequential([keras.Input((6,)), top]).save("converted.keras")
    done = python(
        "-c",
        "import json, sys, kerasmem, keras, numpy\n"
        "for name in sys.argv[1:]:\n"
        "    model = keras.models.load_model(name)\n"
        "    answer = model(numpy.ones((1, 6), 'float32'))\n"
        "    print(json.dumps(keras.ops.convert_to_numpy(answer).tolist()))\n"
        "assert 'kerasmem.extras.legacy.read' not in sys.modules",
        *(files := ("int8.keras", "converted.keras")),
    )
    assert done.returncode == 0, done.stderr
    for file, line in zip(files, done.stdout.splitlines(), strict=True):
        answer = keras.models.load_model(file)(np.ones((1, 6), "float32"))
        expected = keras.ops.convert_to_numpy(answer)
        np.testing.assert_allclose(json.loads(line), expected, rtol=1e-5)


@pytest.mark.one_backend
def test_the_readme_starts_with_an_install_and_the_demo_in_one_line():
    blocks = re.findall(
        r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    (line,) = [
        line for b in blocks for line in b.splitlines() if "kerasmem demo" in line
    ]
    assert line == (
        "python3 -m venv .demo && .demo/bin/pip install -q . && .demo/bin/kerasmem demo"
    )
    (script,) = importlib.metadata.entry_points(
        group="console_scripts", name="kerasmem"
    )
    assert script.value == "kerasmem.cli:main"


# The recipe that the demo is tuned for takes half a minute even on a few images.
DEMO = """
import functools, sys
import numpy as np
import kerasmem.demo.run
from kerasmem.cli import main

y = np.arange(40) % 2
x = np.random.default_rng(0).integers(0, 60, (40, 8, 8)).astype("uint8")
x[y == 0, :4] += 180
kerasmem.demo.run.mirrored_demo_data = lambda: ((x[:32], y[:32]), (x[32:], y[32:]))
kerasmem.demo.run.Recipe = functools.partial(
    kerasmem.demo.run.Recipe, widths=(4, 4), student_widths=(2,), epochs=1,
    fine_tune_epochs=1, student_epochs=1, batch_size=32, student_batch_size=32,
)
sys.exit(main())
"""


@pytest.mark.one_backend
def test_the_demo_runs_from_the_command_line_to_its_last_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = python("-c", DEMO, "demo", "--out", "here", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found["models"]) == ["original", "compressed", "student"]
    for name, figures in found["models"].items():
        assert figures["file_bytes"] == Path(f"here/{name}.keras").stat().st_size
    assert sorted(map(Path, found["files"])) == sorted(Path("here").iterdir())
    assert "Traceback" not in done.stderr
