"""Notices memory that grows from epoch to epoch, and what grows with it."""

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kerasmem import backends
from kerasmem.memory.census import census, grown, object_count
from kerasmem.memory.host import resident_bytes
from kerasmem.memory.leak import WINDOWS, Rise, sustained_rise
from kerasmem.records import Finding
from kerasmem.units import KIB, format_bytes

HOST = "resident memory of the process"
OBJECTS = "blocks of Python objects"
TRACES = "traces of the training step"

_NUMBERS = {OBJECTS: 1000.0, TRACES: 0.5}
_LEAST_BYTES = 64 * KIB
_LEAST_HOST_BYTES = 256 * KIB
_ADVICE = (
    "Every trace stays in memory; one is enough if all batches have one shape and type."
)
_EARLY_WINDOWS = (5,)
"""Enough values for a suspicion: then Python objects are counted a first time."""


class LeakWatch:
    """Tells each series that rises from epoch to epoch, once.

    Before it speaks it has Python collect garbage and looks again: memory that only
    waits for the collector is no leak.

    Args:
        monitor: class name of the callback that asks.
    """

    def __init__(self, monitor: str) -> None:
        self._monitor = monitor
        self._series: dict[str, _Series] = {}
        self._told: set[str] = set()
        self._early: _Count | None = None

    def after_epoch(
        self, epoch: int, measure: Callable[[], dict[str, float]]
    ) -> list[Finding]:
        """Measure, and return the findings that are new.

        Args:
            epoch: index of the epoch, from 0.
            measure: returns figures by name, such as `figures` does.
        """
        for name, value in measure().items():
            series = self._series.setdefault(name, _Series([], []))
            series.values.append(value)
            series.epochs.append(epoch)
        self._count_early()
        if not self._rises().keys() - self._told:
            return []
        gc.collect()
        for name, value in measure().items():
            self._series[name].values[-1] = value
        rises = self._rises()
        new = rises.keys() - self._told
        self._told |= new
        return [
            Finding("leak", self._text(name, rises), epoch, None, self._monitor)
            for name in sorted(new)
        ]

    def _rises(self, windows: Sequence[int] = WINDOWS) -> dict[str, Rise]:
        rises = {
            name: sustained_rise(series.values, _least(name), windows)
            for name, series in self._series.items()
        }
        return {name: rise for name, rise in rises.items() if rise}

    def _count_early(self) -> None:
        if OBJECTS not in self._rises(_EARLY_WINDOWS):
            self._early = None
        elif self._early is None:
            self._early = _Count(self._series[OBJECTS].values[-1], census())

    def _text(self, name: str, rises: dict[str, Rise]) -> str:
        series, rise = self._series[name], rises[name]
        others = [
            f"{other} by {_amount(other, rise.slope)}"
            for other, rise in rises.items()
            if other != name
        ]
        sentences = [
            f"{_subject(name)} rises by {_amount(name, rise.slope)} an epoch since "
            f"epoch {series.epochs[rise.since]}, to {_amount(name, series.values[-1])}."
        ]
        if others:
            sentences.append(f"Also rising: {'; '.join(others)}.")
        if name == OBJECTS and self._early:
            sentences.append(_kinds(self._early, series.values[-1]))
        if name == TRACES:
            sentences.append(_ADVICE)
        return " ".join(sentences)


def figures(model: Any, *, host: bool) -> dict[str, float]:
    """Return what is to be watched by name: devices and `HOST` in bytes, numbers.

    Args:
        model: the model that is being fitted.
        host: whether to read the resident memory of the process too.
    """
    backend = backends.current()
    found: dict[str, float] = {
        device.name: device.current_bytes
        for device in backend.device_memory()
        if device.shares_with is None
    }
    if host:
        found[HOST] = resident_bytes()
    traces = backend.traces(model)
    if traces is not None:
        found[TRACES] = traces
    return found | {OBJECTS: object_count()}


class _Series(NamedTuple):
    values: list[float]
    epochs: list[int]


class _Count(NamedTuple):
    objects: float
    kinds: Counter[str]


def _kinds(early: _Count, objects: float) -> str:
    kinds = grown(early.kinds, census(), least=(objects - early.objects) / 10)
    if not kinds:
        return "They are of kinds that Python does not list: numbers, text, arrays."
    return f"The kinds of objects that grew most: {', '.join(kinds)}."


def _least(name: str) -> float:
    return _NUMBERS.get(name, _LEAST_HOST_BYTES if name == HOST else _LEAST_BYTES)


def _subject(name: str) -> str:
    if name == HOST:
        return "The resident memory of the process"
    return f"The number of {name}" if name in _NUMBERS else f"Memory in use on {name}"


def _amount(name: str, value: float) -> str:
    if name not in _NUMBERS:
        return format_bytes(round(value))
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
