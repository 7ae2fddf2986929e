"""The demo's output is read as it is printed, and a wrong figure is reported."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kerasmem.records import ModelFigures
from kerasmem.records.comparison import comparison_table
from tests.demo.check_readme import (
    README,
    differences,
    printed_figures,
    readme_figures,
)

pytestmark = pytest.mark.one_backend

ORIGINAL = ModelFigures(1_363_149, 1_216_348, 1, 1, metrics={"accuracy": 0.8985})
COMPRESSED = ModelFigures(114_688, 316_416, 1, 1, metrics={"accuracy": 0.889})


def printed(compressed):
    text, models = io.StringIO(), {"original": ORIGINAL, "compressed": compressed}
    models["student"] = compressed
    Console(file=text, width=160).print(comparison_table(models, "title"))
    return printed_figures(text.getvalue())


def test_the_table_of_the_readme_has_the_figures_of_the_demo():
    expected = readme_figures(README.read_text())
    assert differences(printed(COMPRESSED), expected) == []
    assert printed(COMPRESSED)["file"] == ("1.30 MiB", "112 KiB")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"file_bytes": 130_000}, "file"),
        ({"weight_bytes": 320_000}, "weights in RAM"),
        ({"metrics": {"accuracy": 0.87}}, "accuracy"),
    ],
)
def test_a_figure_that_differs_is_reported(change, name):
    wrong = differences(
        printed(replace(COMPRESSED, **change)), readme_figures(README.read_text())
    )
    assert [line.partition(",")[0] for line in wrong] == [name]
