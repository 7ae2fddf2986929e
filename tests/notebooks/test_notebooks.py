"""The notebooks are those of the scripts, and one of them is run anew."""

import json
import os
import subprocess
import sys

import pytest

from tests.notebooks import NOTEBOOKS, ROOT, SCRIPTS, Cell, cells, run

pytestmark = pytest.mark.one_backend

NAMES = ("distill", "fit", "qlora", "shrink", "watch")
MOST_BYTES = 300_000


def kept(name):
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def outputs(content):
    return [out for cell in content["cells"] for out in cell.get("outputs", ())]


def test_each_script_has_its_notebook():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*NAMES}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_script_and_is_small(name):
    script = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    found = [
        Cell(cell["cell_type"], "".join(cell["source"])) for cell in kept(name)["cells"]
    ]
    assert found == cells(script)
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < MOST_BYTES
    assert any("image/svg+xml" in out.get("data", ()) for out in outputs(kept(name)))


def test_a_script_is_cut_where_its_marks_are():
    script = "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1\nx\n"
    assert cells(script) == [
        Cell("markdown", "# Title\n\nWords."),
        Cell("code", "x = 1\nx"),
    ]


def test_a_cell_keeps_what_is_printed_and_what_its_last_line_is_worth():
    names = {}
    printed, shown = run(Cell("code", "y = 2\nprint('a')\ny + 1"), names)
    assert (printed["text"], shown["data"]) == (["a\n"], {"text/plain": ["3"]})
    assert names["y"] == 2
    assert run(Cell("code", "z = None\nz"), names) == []


def test_a_notebook_runs_as_it_is_kept(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from tests.notebooks import SCRIPTS, notebook, text_of\n"
        "content = text_of(notebook(SCRIPTS / 'watch.py'))\n"
        "pathlib.Path('watch.ipynb').write_text(content, encoding='utf-8')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    content = json.loads((tmp_path / "watch.ipynb").read_text(encoding="utf-8"))
    assert [sorted(out.get("data", ["text"])) for out in outputs(content)] == [
        sorted(out.get("data", ["text"])) for out in outputs(kept("watch"))
    ]
