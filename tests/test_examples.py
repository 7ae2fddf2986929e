"""Every example runs and prints what it promises."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_three_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_figures(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))["main"]()
    assert any(character.isdigit() for character in capsys.readouterr().out)
