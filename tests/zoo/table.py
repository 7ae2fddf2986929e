"""The results as a page: a line a verb, then the refusals of each kind of model."""

import re
from collections import Counter, defaultdict
from typing import Any

from tests.zoo.row import OF_KERAS, WORKS

_HEAD = """# Models

Kinds of models that kerasmem is tested with, on TensorFlow. The second table lists the
combinations that raise an error of kerasmem, with the reason.
{others}
    KERAS_BACKEND=tensorflow python -m tests.zoo run zoo.jsonl
    python -m tests.zoo table zoo.jsonl > docs/models.md

| Feature | Works | Error |
|---|--:|--:|
"""

_KINDS = """
## Kinds

{kinds}
"""

_ERRORS = """
## Outputs after rounding

The largest relative errors (L2) of outputs with rounded activations; 15 % is the limit.
With rounded weights the limits are 3 % (int8) and 30 % (int4).

| Kind | Scheme | Error |
|---|---|--:|
"""

_REFUSALS = """
## Errors

| Kind | Feature | Reason |
|---|---|---|
"""

_MOST_WORDS = 20


def table(results: list[dict[str, Any]]) -> str:
    """Returns the page in Markdown."""
    rows = [row for row in results if row["backend"] == "tensorflow"]
    verbs = list(dict.fromkeys(row["verb"] for row in rows))
    works = Counter(row["verb"] for row in rows if row["result"] == WORKS)
    cells = Counter(row["verb"] for row in rows)
    lines = [f"| {v} | {works[v]} | {cells[v] - works[v]} |" for v in verbs]
    lines.append(f"| all | {works.total()} | {cells.total() - works.total()} |")
    kinds = "\n".join(f"- {kind}" for kind in dict.fromkeys(r["kind"] for r in rows))
    head = _HEAD.format(others=_other_backends(results)) + "\n".join(lines) + "\n"
    return head + _KINDS.format(kinds=kinds) + _errors(rows) + _refusals(rows)


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
    """Returns the first sentence without numbers, terminal codes and folders."""
    text = re.sub(r"\x1b\[\d+m", "", text).removeprefix("kerasmem: error: ")
    text = re.sub(r"(?<=[a-z])_\d+\b", "", text)
    text = re.sub(r"(?<![\w.])/[^'\" ]*/", "", text)
    text = " ".join(re.split(r"(?<=[.]) ", text)[0].split()[:_MOST_WORDS])
    for sign in "|<{]":  # signs of Markdown, HTML, templates and links
        text = text.replace(sign, f"&#{ord(sign)};")
    return text
