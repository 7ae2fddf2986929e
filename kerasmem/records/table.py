"""Tables of text, shown as HTML in a page and by rich in the terminal."""

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
    """A table of text and figures.

    Args:
        title: Title, or `""`.
        columns: Column names, text columns first. All `""` for no header.
        rows: Cells as text. A row may have fewer cells than columns.
        texts: Number of leading text columns. The others contain figures.
        note: Note below the table, such as the number of omitted rows.
        last_texts: Number of trailing text columns.
        strong: Indices of the highlighted columns.
        row_looks: Style by row index: `"strong"` or `"soft"`.
        sortable: Whether rows can be sorted.
        sections: Indices of rows below a separator in the terminal.
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
        """Returns the style class of a column's cells. `""` is a figure."""
        if column < self.texts or column >= len(self.columns) - self.last_texts:
            return "text"
        return "strong" if column in self.strong else ""


def terminal_table(table: Table, title: str | None = None) -> rich.table.Table:
    """Returns a table for the terminal. `title` replaces the title of the table."""
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
    """Returns a table as plain text without trailing spaces."""
    console = rich.console.Console(
        file=io.StringIO(), width=width, color_system=None, highlight=False
    )
    with console.capture() as capture:
        console.print(table, markup=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def bytes_or_missing(size: int | None) -> str:
    """Returns a size as text, or `MISSING` for `None`."""
    return MISSING if size is None else format_bytes(size)


def number_text(value: float | None, digits: int = 3) -> str:
    """Returns a number with `digits` significant digits, or `MISSING`."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.{digits}g}"


def share_text(part: float | None, whole: float = 1.0) -> str:
    """Returns `part / whole` in percent, or `MISSING`."""
    if part is None or not math.isfinite(part) or not whole:
        return MISSING
    return f"{100 * part / whole:.1f} %"


def evenly(rows: Sequence[_Row], most: int = MOST_ROWS) -> tuple[list[_Row], str]:
    """Returns at most `most` evenly spaced rows, and a note about omitted rows.

    The first and the last row are always included.

    Example:
        >>> evenly(range(9), most=3)
        ([0, 4, 8], 'Showing 3 of 9 rows, evenly spaced.')
        >>> evenly("ab")
        (['a', 'b'], '')
    """
    if len(rows) <= most:
        return list(rows), ""
    selection = [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]
    return selection, f"Showing {most:,} of {len(rows):,} rows, evenly spaced."
