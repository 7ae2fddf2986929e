"""Notebooks of the documentation, made of scripts: `python -m tests.notebooks`.

A script of `examples/notebooks` has cells as editors know them: `# %%` begins code,
`# %% [markdown]` text in comments. It runs in a process of its own, without a kernel;
what is printed and what the last line of a cell is worth is kept in `docs/notebooks`.
"""

import ast
import contextlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "notebooks"
NOTEBOOKS = ROOT / "docs" / "notebooks"
FORMS = {"image/svg+xml": "_repr_svg_", "text/html": "_repr_html_"}
"""How an object shows itself in a notebook: the first that it has counts."""


@dataclass(frozen=True)
class Cell:
    """One cell of a script.

    Args:
        kind: `"code"` or `"markdown"`.
        source: its text.
    """

    kind: str
    source: str


def cells(text: str) -> list[Cell]:
    """Return the cells of a script."""
    parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    found = []
    for mark, source in zip(parts[1::2], parts[2::2], strict=True):
        if "[markdown]" in mark:
            text = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
            found.append(Cell("markdown", text.strip()))
        else:
            found.append(Cell("code", source.strip()))
    return found


def run(cell: Cell, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell of code and return its outputs, as a notebook keeps them."""
    tree = ast.parse(cell.source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": _lines(text)}
        )
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        for form, name in FORMS.items():
            if shown := getattr(value, name, None):
                data[form] = _lines(shown())
                break
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def notebook(script: Path) -> dict[str, Any]:
    """Run a script, cell by cell, and return its notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    for number, cell in enumerate(cells(script.read_text(encoding="utf-8"))):
        base = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}}
        base["source"] = _lines(cell.source)
        if cell.kind == "code":
            base |= {"execution_count": None, "outputs": run(cell, names)}
        found.append(base)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": found, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def text_of(content: dict[str, Any]) -> str:
    """Return a notebook as the text of its file."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
