"""Every code block of the documentation runs, every example in a docstring holds."""

import ast
import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import kerasmem

HOME = Path(kerasmem.__file__).parent
ROOT = Path(__file__).parents[1]
OF_EVERY_BACKEND = {
    "README.md",
    "docs/compressed_activations.md",
    "docs/data_and_devices.md",
    "docs/estimating.md",
    "docs/optimizers.md",
    "docs/out_of_memory.md",
    "docs/rematerializing.md",
    "docs/watching.md",
}
"""Pages of what each backend does in its own way; the others run on one of them."""
PAGES = [
    page
    for page in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted(HOME.rglob("*.md")),
    ]
    if "```python" in page.read_text()
]
ADAPTERS = [HOME / "backends" / name for name in ("jax", "tensorflow", "torch")]
"""Rooms of which only that of the running backend may be imported."""
MODULES = [
    ".".join(file.relative_to(HOME.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )
    for file in sorted(HOME.rglob("*.py"))
    if file.stem != "__main__" and not {*file.parents} & {*ADAPTERS}
]


def name_of(page):
    """Return a page's path: below the package that is installed, or these tests."""
    root = HOME.parent if page.is_relative_to(HOME) else ROOT
    return page.relative_to(root).as_posix()


def as_parameter(page):
    name = name_of(page)
    marks = [] if name in OF_EVERY_BACKEND else [pytest.mark.one_backend]
    return pytest.param(page, id=name, marks=marks)


@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("page", [as_parameter(page) for page in PAGES])
def test_the_code_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text(), {}
    for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        line = text[: block.start(1)].count("\n")
        code = ast.increment_lineno(ast.parse(block[1]), line)
        exec(compile(code, page, "exec"), names)
    assert len(names) > 1  # besides __builtins__


@pytest.mark.one_backend
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_hold(name):
    module = importlib.import_module(name)
    names = {**vars(module), "np": np}
    assert doctest.testmod(module, extraglobs=names).failed == 0


@pytest.mark.one_backend
def test_pages_of_every_backend_are_there():
    assert {name_of(page) for page in PAGES} >= OF_EVERY_BACKEND


@pytest.mark.one_backend
def test_the_page_of_commands_names_every_one_and_no_other():
    from kerasmem.cli.main import build_parser

    page = (ROOT / "docs" / "commands.md").read_text()
    commands = set(re.findall(r"\| `kerasmem (\w+)", page))
    assert commands == set(build_parser()._subparsers._group_actions[0].choices)
