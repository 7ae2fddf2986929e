"""Compares the output of `kerasmem demo` with the table of the README.

    kerasmem demo | tee demo.txt && python -m tests.demo.check_readme demo.txt

Sizes that follow from the architecture must be equal as printed. The rest depends on
the weights, which rounding on other processors changes: the compressed file may differ
by 5 %, an accuracy by 0.015, two standard errors on 2,000 images.
"""

import re
import sys
from pathlib import Path

from kerasmem.units import parse_bytes

README = Path(__file__).parents[2] / "README.md"
NAMES = ("file", "weights in RAM", "accuracy")
MOST_FILE_DIFFERENCE, MOST_ACCURACY_DIFFERENCE = 0.05, 0.015

Figures = dict[str, tuple[str, str]]


def readme_figures(text: str) -> Figures:
    """Returns the figures before and after of the rows of `kerasmem demo`."""
    rows = [line for line in text.splitlines() if "`kerasmem demo`" in line]
    cells = [row.replace("&nbsp;", " ").replace("*", "").split("|") for row in rows]
    return {name.strip(): (old.strip(), new.strip()) for _, name, old, new, *_ in cells}


def printed_figures(text: str) -> Figures:
    """Returns the figures of the original and the compressed model."""
    lines = (row.strip(" │┃|") for row in text.splitlines())
    rows = [re.split(r"\s*[│┃|]\s*|\s{2,}", line) for line in lines]
    return {
        row[0]: (row[1], row[2]) for row in rows if row[0] in NAMES and len(row) > 2
    }


def differences(printed: Figures, expected: Figures) -> list[str]:
    """Returns a line per figure of the README that the demo does not print."""
    return [
        f"{name}, {when}: README {expected[name][n]}, demo {printed[name][n]}"
        for name in NAMES
        for n, when in enumerate(("before", "after"))
        if not _agree(name, n, printed[name][n], expected[name][n])
    ]


def _agree(name: str, number: int, printed: str, expected: str) -> bool:
    if name == "accuracy":
        return abs(float(printed) - float(expected)) <= MOST_ACCURACY_DIFFERENCE
    if name == "file" and number == 1:
        size = parse_bytes(expected)
        return abs(parse_bytes(printed) - size) <= MOST_FILE_DIFFERENCE * size
    return printed == expected


def main(path: str) -> int:
    """Prints the figures and returns 1 if any differs from the README."""
    printed = printed_figures(Path(path).read_text())
    expected = readme_figures(README.read_text())
    wrong = differences(printed, expected)
    lines = [f"{n}: README {expected[n]}, demo {printed[n]}" for n in NAMES]
    lines += wrong or ["The demo agrees with the README."]
    sys.stdout.write("\n".join([*lines, ""]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
