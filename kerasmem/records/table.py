"""Tables of text: one form, which a page shows as HTML and the terminal by rich."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import rich.console
import rich.table

from kerasmem.units import format_bytes

_Row = TypeVar("_Row")

_TERMINAL_STYLES = {"strong": "bold", "soft": "dim"}

MISSING = "-"
MOST_ROWS = 200


@dataclass(frozen=True)
class Table:
    """A table of texts and figures.

    Args:
        title: what it shows, `""` for none.
        columns: the head, of texts first and figures after; all `""` for no head.
        rows: the cells as text; a row may end early.
        texts: how many of the columns are text; the others are figures.
        note: what was left out of it.
        last_texts: how many of the last columns are text, too.
        strong: indices of the columns that count most.
        row_looks: by a row's index what it is beside the others: `"strong"`, `"soft"`.
        sortable: whether its rows can be compared with each other.
        sections: indices of the rows that have a line above them in the terminal.
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
    sections: tuple[int, ...] = ()

    def look(self, column: int) -> str:
        """Return the style class of a column's cells, `""` for that of figures."""
        if column < self.texts or column >= len(self.columns) - self.last_texts:
            return "text"
        return "strong" if column in self.strong else ""


def terminal_table(table: Table, title: str | None = None) -> rich.table.Table:
    """Return a table for the terminal, under another title if there is one."""
    rich_table = rich.table.Table(
        title=(table.title if title is None else title) or None,
        title_justify="left",
        show_header=any(table.columns),
    )
    for column, name in enumerate(table.columns):
        is_text = table.look(column) == "text"
        rich_table.add_column(
            name, justify="left" if is_text else "right", overflow="fold"
        )
    for number, cells in enumerate(table.rows):
        if number in table.sections:
            rich_table.add_section()
        style = _TERMINAL_STYLES.get(table.row_looks.get(number, ""))
        rich_table.add_row(*cells, style=style)
    return rich_table


def as_text(table: rich.table.Table, width: int = 120) -> str:
    """Returns a table as plain text without trailing spaces.

    Args:
        table: The table.
        width: Number of characters in a line.
    """
    console = rich.console.Console(
        file=io.StringIO(), width=width, color_system=None, highlight=False
    )
    with console.capture() as capture:
        console.print(table, markup=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def bytes_or_missing(size: int | None) -> str:
    """Return a size as text, `MISSING` for None."""
    return MISSING if size is None else format_bytes(size)


def number_text(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits, `MISSING` for None and NaN."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.{digits}g}"


def share_text(part: float | None, whole: float = 1.0) -> str:
    """Return a part of a whole in percent, `MISSING` if there is none or no whole."""
    if part is None or not math.isfinite(part) or not whole:
        return MISSING
    return f"{100 * part / whole:.1f} %"


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
    selection = [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]
    return selection, f"Shown are {most:,} of {len(rows):,} rows, evenly spaced."
