"""Rows of text under a chart, for those who read rather than look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kerasmem.units import format_bytes

_Row = TypeVar("_Row")

MISSING = "-"
MOST_ROWS = 200


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Args:
        title: what it shows.
        columns: the head, of texts first and figures after.
        rows: the cells as text.
        texts: how many of the columns are text; the others are figures.
        note: what was left out of it.
        last_texts: how many of the last columns are text, too.
        strong: indices of the columns that count most.
        row_looks: by a row's index what it is beside the others: `"strong"`, `"soft"`.
        sortable: whether its rows can be compared with each other.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    note: str = ""
    last_texts: int = 0
    strong: tuple[int, ...] = ()
    row_looks: Mapping[int, str] = field(default_factory=dict[int, str])
    sortable: bool = True

    def look(self, column: int) -> str:
        """Return the style class of a column's cells, `""` for that of figures."""
        if column < self.texts or column >= len(self.columns) - self.last_texts:
            return "text"
        return "strong" if column in self.strong else ""


def bytes_or_missing(size: int | None) -> str:
    """Return a size as text, `MISSING` for None."""
    return MISSING if size is None else format_bytes(size)


def share_text(share: float | None) -> str:
    """Return a share from 0 to 1 in percent, `MISSING` for None."""
    return MISSING if share is None else f"{100 * share:.1f} %"


def evenly(rows: Sequence[_Row], most: int = MOST_ROWS) -> tuple[list[_Row], str]:
    """Return at most `most` of the rows, spread evenly, and a note on what is left out.

    The first and the last are always among them.

    Example:
        >>> evenly(range(9), most=3)
        ([0, 4, 8], 'Shown are 3 of 9 rows, evenly spaced.')
        >>> evenly("ab")
        (['a', 'b'], '')
    """
    if len(rows) <= most:
        return list(rows), ""
    kept = [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]
    return kept, f"Shown are {most:,} of {len(rows):,} rows, evenly spaced."
