"""The results as a page: a line a verb, then the refusals of each kind of model."""

import re
from collections import Counter, defaultdict
from typing import Any

from tests.zoo.row import OF_KERAS, WORKS

_HEAD = """# Models

The kinds of models that kerasmem is tested with, and what works with each. A refusal
is an error of kerasmem, and the reason is its text. The table below is of TensorFlow.
{others}
    KERAS_BACKEND=tensorflow python -m tests.zoo run zoo.jsonl
    python -m tests.zoo table zoo.jsonl > docs/models.md

Kinds: {kinds}.

| what | works | refused |
|---|--:|--:|
"""

_ERRORS = """
## Outputs after rounding

The relative error (L2) of the outputs is at most 3 % for int8 and 30 % for int4. The
ten largest errors of rounded activations, allowed are 15 %:

| kind | scheme | error |
|---|---|--:|
"""

_REFUSALS = """
## Refusals

| kind | refused | reason |
|---|---|---|
"""


def table(results: list[dict[str, Any]]) -> str:
    """Returns the page in Markdown."""
    rows = [row for row in results if row["backend"] == "tensorflow"]
    verbs = list(dict.fromkeys(row["verb"] for row in rows))
    works = Counter(row["verb"] for row in rows if row["result"] == WORKS)
    cells = Counter(row["verb"] for row in rows)
    lines = [f"| {v} | {works[v]} | {cells[v] - works[v]} |" for v in verbs]
    lines.append(f"| all | {works.total()} | {cells.total() - works.total()} |")
    kinds = "; ".join(dict.fromkeys(row["kind"] for row in rows))
    head = _HEAD.format(kinds=kinds, others=_other_backends(results))
    return head + "\n".join(lines) + "\n" + _errors(rows) + _refusals(rows)


def _other_backends(results: list[dict[str, Any]]) -> str:
    counts = Counter(row["backend"] for row in results)
    works = Counter(row["backend"] for row in results if row["result"] == WORKS)
    lines = []
    for name in ("jax", "torch"):
        refused = [r for r in results if r["backend"] == name and r["result"] != WORKS]
        kinds = {r["kind"] for r in refused if r["result"].startswith(OF_KERAS)}
        if counts[name]:
            lines.append(
                f"On {name} {works[name]} of {counts[name]} cells of every fourth kind "
                "work."
            )
        if kinds:
            lines.append(f"Keras itself cannot run there: {', '.join(kinds)}.")
    return "".join(f"{line}\n" for line in lines)


def _errors(rows: list[dict[str, Any]]) -> str:
    schemes = ('Quantize("int8-dynamic")', 'Quantize("int8-static")')
    found = [r for r in rows if r["verb"] in schemes and r.get("error") is not None]
    found.sort(key=lambda row: -row["error"])
    lines = [
        f"| {r['kind']} | {r['verb'][10:-2]} | {r['error']:.1%} |" for r in found[:10]
    ]
    return _ERRORS + "\n".join(lines) + "\n"


def _refusals(rows: list[dict[str, Any]]) -> str:
    verbs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        if row["result"] != WORKS:
            verbs[row["kind"], _reason(row["result"])].append(row["verb"])
    lines = [
        f"| {kind} | {', '.join(names)} | {reason} |"
        for (kind, reason), names in verbs.items()
    ]
    return _REFUSALS + "\n".join(lines) + "\n"


def _reason(text: str) -> str:
    """Returns the text without numbers of a run, codes of a terminal, and folders."""
    text = re.sub(r"\x1b\[\d+m", "", text).removeprefix("kerasmem: error: ")
    text = re.sub(r"(?<=[a-z])_\d+\b", "", text)
    text = re.sub(r"(?<![\w.])/[^'\" ]*/", "", text)
    for sign in "|<{]":  # signs of Markdown, HTML, templates and links
        text = text.replace(sign, f"&#{ord(sign)};")
    return text
