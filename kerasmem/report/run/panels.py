"""Charts over the epochs: lines of bytes or numbers, and what they are of."""

from dataclasses import dataclass, field

import numpy as np

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
    """A chart: the memory of one device of one process or of its host, or the loss.

    Args:
        title: what it is of.
        lines: its series, the most important one first.
        notes: what has to be known to read it.
        unit: `"bytes"` or `"number"`.
    """

    title: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    unit: str = "bytes"

    @property
    def words(self) -> str:
        """What the chart shows, for those who cannot see it."""
        return " ".join(
            f"{line.name}: from {self._text(line.y[0])} to {self._text(line.y[-1])}, "
            f"at most {self._text(max(line.y))}."
            for line in self.lines
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


def thinned(line: Line) -> Line:
    """Return the line with at most `_MOST_POINTS` points; lows and highs stay.

    Every stretch of a long line keeps its lowest and its highest point.
    """
    if len(line.x) <= _MOST_POINTS:
        return line
    y = np.asarray(line.y)
    kept: dict[int, None] = {}
    for part in np.array_split(np.arange(len(y)), _MOST_POINTS // 2):
        ends = {int(part[y[part].argmin()]), int(part[y[part].argmax()])}
        kept |= dict.fromkeys(sorted(ends))
    return Line(
        line.name, line.style, [line.x[i] for i in kept], [line.y[i] for i in kept]
    )
