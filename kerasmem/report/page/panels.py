"""Line charts over epochs, and packing of their numbers."""

import base64
import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kerasmem.units import format_bytes

_WHOLE = (np.uint8, np.uint16, np.uint32, np.int8, np.int16, np.int32)
_ALIGNMENT = 8


class Packer:
    """Packs JSON content and columns of numbers into one text, read by `unpack.js`.

    The text is base64 of a zlib stream. The stream begins with the length of the header
    (4 bytes, little endian) and the header (JSON with `"content"` and `"columns"`). The
    columns follow, each aligned to 8 bytes. The content refers to columns by index.
    """

    def __init__(self) -> None:
        self._columns: list[dict[str, Any]] = []
        self._bytes = bytearray()

    def whole(self, values: Sequence[int], *, rising: bool = False) -> dict[str, int]:
        """Adds a column of integers, exact up to 2**53. Returns the reference.

        Columns with small steps are stored as differences if `rising`.
        """
        column = np.asarray(values, np.int64)
        steps = np.diff(column, prepend=0) if rising else column
        return self._add(_narrow(steps), rising=rising)

    def place(self, values: Sequence[float] | np.ndarray) -> dict[str, int]:
        """Adds a column of numbers with seven digits. Returns the reference."""
        with np.errstate(over="ignore"):  # charts omit infinite values
            column = np.asarray(values, np.float32).reshape(-1)
        return self._add(column, rising=False)

    def pack(self, content: Mapping[str, Any]) -> str:
        """Returns the content and all columns as one text without `<`, `>` or `&`."""
        header = json.dumps({"content": content, "columns": self._columns}).encode()
        padding = b" " * (-(4 + len(header)) % _ALIGNMENT)
        length = struct.pack("<I", len(header) + len(padding))
        whole = length + header + padding + bytes(self._bytes)
        return base64.b64encode(zlib.compress(whole, 9)).decode("ascii")

    def _add(self, column: np.ndarray, *, rising: bool) -> dict[str, int]:
        data = column.astype(column.dtype.newbyteorder("<")).tobytes()
        kind = column.dtype.name
        at, length = len(self._bytes), len(column)
        self._columns.append(
            {"type": kind, "at": at, "length": length, "rising": rising}
        )
        self._bytes += data + bytes(-len(data) % _ALIGNMENT)
        return {"column": len(self._columns) - 1}


def _narrow(column: np.ndarray) -> np.ndarray:
    if not len(column):
        return column.astype(np.uint8)
    low, high = column.min(), column.max()
    for kind in _WHOLE:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return column.astype(kind)
    return column.astype(np.float64)


_MOST_POINTS = 5000


@dataclass(frozen=True)
class Series:
    """One series of a panel, with positions `x` and values `y`.

    `style` is a name in `lines.js`.
    """

    name: str
    style: str
    x: list[float] = field(default_factory=list[float])
    y: list[float] = field(default_factory=list[float])


@dataclass(frozen=True)
class Panel:
    """A line chart, such as the memory of a device, the loss or a norm.

    Args:
        title: Title of the chart.
        lines: Series, the most important one first.
        notes: Explanations.
        unit: `"bytes"`, `"number"`, or `"log"` for a logarithmic axis.
        marks: Positions marked with a cross.
        step: Quantity of the horizontal axis: `"epoch"` or `"call"`.
    """

    title: str
    lines: tuple[Series, ...]
    notes: tuple[str, ...] = ()
    unit: str = "bytes"
    marks: tuple[float, ...] = ()
    step: str = "epoch"

    @property
    def words(self) -> str:
        """Text description of the chart, for screen readers."""
        finite = [(line.name, [*filter(math.isfinite, line.y)]) for line in self.lines]
        return " ".join(
            f"{name}: from {self._text(y[0])} to {self._text(y[-1])}, "
            f"at most {self._text(max(y))}."
            for name, y in finite
            if y
        )

    def _text(self, value: float) -> str:
        return format_bytes(round(value)) if self.unit == "bytes" else f"{value:.4g}"


class Lines:
    """Series by name, in the order of their first points."""

    def __init__(self) -> None:
        self._by_name: dict[str, Series] = {}

    def add(self, name: str, style: str, x: float, y: float | None) -> None:
        """Adds a point to the series `name`. `None` is skipped."""
        if y is not None:
            line = self._by_name.setdefault(name, Series(name, style))
            line.x.append(x)
            line.y.append(y)

    def filled(self) -> tuple[Series, ...]:
        """Returns all series."""
        return tuple(self._by_name.values())


def packed_panels(panels: Sequence[Panel], packer: Packer) -> list[dict[str, Any]]:
    """Returns the charts for `start.js` and adds their columns to `packer`."""
    return [
        {
            "title": panel.title,
            "unit": panel.unit,
            "step": panel.step,
            "marks": packer.place(panel.marks),
            "lines": [
                {
                    "name": line.name,
                    "style": line.style,
                    "x": packer.place(line.x),
                    "y": packer.whole([*map(round, line.y)])
                    if panel.unit == "bytes"
                    else packer.place(line.y),
                }
                for line in map(thinned, panel.lines)
            ],
        }
        for panel in panels
    ]


def thinned(line: Series) -> Series:
    """Returns a series with at most `_MOST_POINTS` points.

    Each section of a long series keeps its lowest and highest points.
    """
    if len(line.x) <= _MOST_POINTS:
        return line
    y = np.asarray(line.y)
    low, high = np.where(np.isnan(y), np.inf, y), np.where(np.isnan(y), -np.inf, y)
    indices: dict[int, None] = {}
    for part in np.array_split(np.arange(len(y)), _MOST_POINTS // 2):
        ends = {int(part[low[part].argmin()]), int(part[high[part].argmax()])}
        indices |= dict.fromkeys(sorted(ends))
    return Series(
        line.name,
        line.style,
        [line.x[i] for i in indices],
        [line.y[i] for i in indices],
    )
