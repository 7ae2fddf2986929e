"""Charts over the epochs: lines of bytes or numbers, and what they are of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kerasmem.report.page.packing import Packer
from kerasmem.units import format_bytes

_MOST_POINTS = 5000


@dataclass(frozen=True)
class Line:
    """One series of a panel.

    Args:
        name: what it is, as its label says it.
        style: name of its look, see `lines.js`.
        x: places on the axis of epochs.
        y: bytes, or what else the panel is of.
    """

    name: str
    style: str
    x: list[float] = field(default_factory=list[float])
    y: list[float] = field(default_factory=list[float])


@dataclass(frozen=True)
class Panel:
    """A chart: the memory of one device of one process or of its host, loss, norm.

    Args:
        title: what it is of.
        lines: its series, the most important one first.
        notes: what has to be known to read it.
        unit: `"bytes"`, `"number"`, or `"log"` for numbers by their powers of ten.
        marks: places on the axis of epochs that have a cross.
        step: what the places are numbers of, `"epoch"` or `"call"`, or shares of:
            `"sparsity"`.
    """

    title: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    unit: str = "bytes"
    marks: tuple[float, ...] = ()
    step: str = "epoch"

    @property
    def words(self) -> str:
        """What the chart shows, for those who cannot see it."""
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
    """Lines by name, in the order of the first point of each."""

    def __init__(self) -> None:
        self._by_name: dict[str, Line] = {}

    def add(self, name: str, style: str, x: float, y: float | None) -> None:
        """Add a point to the line `name`; what is unknown is no point."""
        if y is not None:
            line = self._by_name.setdefault(name, Line(name, style))
            line.x.append(x)
            line.y.append(y)

    def filled(self) -> tuple[Line, ...]:
        """Return the lines that have points."""
        return tuple(self._by_name.values())


def packed_panels(panels: Sequence[Panel], packer: Packer) -> list[dict[str, Any]]:
    """Return what `start.js` reads of charts, their columns left with `packer`."""
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


def thinned(line: Line) -> Line:
    """Return the line with at most `_MOST_POINTS` points; lows and highs stay.

    Every stretch of a long line keeps its lowest and its highest point.
    """
    if len(line.x) <= _MOST_POINTS:
        return line
    y = np.asarray(line.y)
    low, high = np.where(np.isnan(y), np.inf, y), np.where(np.isnan(y), -np.inf, y)
    kept: dict[int, None] = {}
    for part in np.array_split(np.arange(len(y)), _MOST_POINTS // 2):
        ends = {int(part[low[part].argmin()]), int(part[high[part].argmax()])}
        kept |= dict.fromkeys(sorted(ends))
    return Line(
        line.name, line.style, [line.x[i] for i in kept], [line.y[i] for i in kept]
    )
