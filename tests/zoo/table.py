"""The results as a page: a line a verb, and below it the kinds that it refuses."""

from collections import defaultdict
from typing import Any

from tests.zoo.row import WORKS

_HEAD = """# Models

The kinds of models that kerasmem is tested with, and what works with each. A refusal
is an error of kerasmem, and the reason is its text.

    python -m tests.zoo run zoo.jsonl && python -m tests.zoo table zoo.jsonl

| what | works | refused |
|---|--:|--:|
"""


def table(results: list[dict[str, Any]]) -> str:
    """Returns the page in Markdown, of the results on TensorFlow."""
    by_verb: dict[str, dict[str, str]] = defaultdict(dict)
    for row in results:
        if row["backend"] == "tensorflow":
            by_verb[row["verb"]][row["kind"]] = row["result"]
    lines, sections = [], []
    for verb, cells in by_verb.items():
        refused = {kind: text for kind, text in cells.items() if text != WORKS}
        lines.append(f"| {verb} | {len(cells) - len(refused)} | {len(refused)} |")
        if refused:
            rows = [f"| {kind} | {text} |" for kind, text in refused.items()]
            head = "| kind | reason |\n|---|---|"
            sections.append(f"\n## {verb}\n\n{head}\n" + "\n".join(rows))
    return _HEAD + "\n".join([*lines, *sections]) + "\n"
