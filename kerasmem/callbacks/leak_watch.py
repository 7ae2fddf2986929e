"""Detection of memory that grows from epoch to epoch or from call to call."""

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kerasmem import backends
from kerasmem.memory.census import Census, Growth, census, grown, newest, object_count
from kerasmem.memory.references import holder, names
from kerasmem.processes.host import resident_bytes
from kerasmem.records import Finding, own_allocators
from kerasmem.types import Model
from kerasmem.units import KIB, format_bytes

WARM_UP = 2
"""Number of initial values that are ignored."""

WINDOWS = (8, 16, 32)
"""Numbers of values over which a rise is tested."""

_RISE_PER_SCATTER = 8.0
_HELD_UP = 0.7
_LEAST_NET_RISE = 1 - 1 / _RISE_PER_SCATTER
"""Minimum net rise, as a fraction of slope times number of epochs."""


class Rise(NamedTuple):
    """A sustained rise: slope per value and index of the first value."""

    slope: float
    since: int


def sustained_rise(
    values: Sequence[float], least: float, windows: Sequence[int] = WINDOWS
) -> Rise | None:
    """Return the rise in the latest values, or None.

    The slope is the median of the slopes between any two values (Theil, "A
    rank-invariant method of linear and polynomial regression analysis", 1950; Sen,
    1968), so outliers do not change it. A sustained rise has four properties: the slope
    is at least `least`. The rise is eight times the scatter of the values around the
    slope. The second half is about as steep as the whole. The last value is the
    highest. The widest of `windows` with a rise gives its start.

    Noise, a step, a rise that levels off and a sawtooth shorter than the smallest
    window are therefore excluded.

    Example:
        >>> sustained_rise([0, 9, 9, 9, 9, 9, 9, 9, 9, 9], least=1)
        >>> sustained_rise([0, 9, 10, 11, 12, 13, 14, 15, 16, 17], least=1)
        Rise(slope=1.0, since=2)
    """
    for window in sorted(windows, reverse=True):
        first = len(values) - window
        if first < WARM_UP or values[-1] <= max(values[:-1]):
            continue
        if values[-1] - values[first] < _LEAST_NET_RISE * least * (window - 1):
            continue  # cheap check before the slope
        slope = _slope(values[first:])
        if slope >= least and _is_steady(values[first:], slope):
            return Rise(slope, first)
    return None


def _is_steady(values: Sequence[float], slope: float) -> bool:
    about = np.asarray(values, "float64") - slope * np.arange(len(values))
    scatter = float(np.ptp(about))
    is_clear = slope * (len(values) - 1) >= _RISE_PER_SCATTER * scatter
    return is_clear and _slope(values[len(values) // 2 :]) >= _HELD_UP * slope


@functools.cache
def _pairs(number: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(number, k=1)


def _slope(values: Sequence[float]) -> float:
    heights = np.asarray(values, "float64")
    first, second = _pairs(len(heights))
    return float(np.median((heights[second] - heights[first]) / (second - first)))


HOST = "resident memory of the process"
OBJECTS = "blocks of Python objects"
TRACES = "traces of the training step"

_NUMBERS = {OBJECTS: 1000.0, TRACES: 0.5}
_LEAST_BYTES = 64 * KIB
_LEAST_HOST_BYTES = 256 * KIB
_ADVICE = "Every trace stays in memory. Use one shape and dtype for all batches."
_EARLY_WINDOWS = (5,)
"""Enough values to count objects by type a first time."""


class LeakWatch:
    """Reports once each series that rises, with the objects and their references.

    Runs garbage collection and measures again before a report, because uncollected
    garbage is no leak. Series that are reported in one epoch share a finding. `step` is
    `"epoch"` or `"call"`.
    """

    def __init__(self, monitor: str, step: str = "epoch") -> None:
        self._monitor = monitor
        self._step = step
        self._series: dict[str, _Series] = {}
        self._reported: set[str] = set()
        self._early: _Count | None = None
        self._epochs = 0

    def after_step(
        self, epoch: int, measure: Callable[[], dict[str, float]]
    ) -> list[Finding]:
        """Measure, and return at most one new finding."""
        self._epochs += 1
        for name, value in measure().items():
            series = self._series.setdefault(name, _Series([], []))
            series.values.append(value)
            series.epochs.append(epoch)
        self._count_early()
        if not self._rises().keys() - self._reported:
            return []
        gc.collect()
        for name, value in measure().items():
            self._series[name].values[-1] = value
        rises = self._rises()
        new = sorted(rises.keys() - self._reported, key=_bytes_first)
        self._reported.update(new)
        if not new:
            return []
        return [Finding("leak", self._text(new, rises), epoch, None, self._monitor)]

    @property
    def _every(self) -> str:
        return "an epoch" if self._step == "epoch" else f"a {self._step}"

    def _rises(self, windows: Sequence[int] = WINDOWS) -> dict[str, Rise]:
        rises = {
            name: sustained_rise(series.values, _least(name), windows)
            for name, series in self._series.items()
        }
        return {name: rise for name, rise in rises.items() if rise}

    def _count_early(self) -> None:
        windows = (*_EARLY_WINDOWS, *WINDOWS)
        if not self._rises(windows).keys() - self._reported:
            self._early = None
        elif self._early is None:
            gc.collect()
            self._early = _Count(self._epochs, census())

    def _text(self, new: Sequence[str], rises: dict[str, Rise]) -> str:
        name, *_ = new
        series, rise = self._series[name], rises[name]
        others = [
            f"{other} by {_amount(other, rise.slope)}"
            for other, rise in rises.items()
            if other != name
        ]
        sentences = [
            f"{_subject(name)} rises by {_amount(name, rise.slope)} {self._every} "
            f"since {self._step} {series.epochs[rise.since] + 1}, to "
            f"{_amount(name, series.values[-1])}."
        ]
        if others:
            sentences.append(f"Also rising: {'; '.join(others)}.")
        if TRACES in new:
            sentences.append(_ADVICE)
        epochs = self._epochs - self._early.epochs if self._early else 0
        if self._early and epochs:
            blocks = rises[OBJECTS].slope if OBJECTS in rises else 0.0
            sentences += _what_grows(self._early.kinds, epochs, blocks, self._step)
        return " ".join(sentences)


def figures(model: Model, *, host: bool) -> dict[str, float]:
    """Return the watched values by name: bytes per device, `HOST` bytes, and counts."""
    backend = backends.current()
    values: dict[str, float] = {
        device.name: device.current_bytes
        for device in own_allocators(backend.device_memory())
    }
    if host:
        values[HOST] = resident_bytes()
    traces = backend.traces(model)
    if traces is not None:
        values[TRACES] = traces
    return values | {OBJECTS: object_count()}


class _Series(NamedTuple):
    values: list[float]
    epochs: list[int]


class _Count(NamedTuple):
    epochs: int
    kinds: Census


def _what_grows(early: Census, epochs: int, blocks: float, step: str) -> Iterator[str]:
    growing_kinds = grown(early, census(), epochs=epochs, blocks=blocks)
    if not growing_kinds:
        if blocks:
            yield "Their types are not tracked by Python, such as numbers and text."
        return
    yield f"Growth per {step}: {', '.join(map(_growth_words, growing_kinds))}."
    # Built-in types have many instances that other code holds.
    kind = next(
        (one for one in growing_kinds if one.nbytes or "." in one.kind),
        growing_kinds[0],
    )
    samples = newest(kind.kind, round(kind.number * epochs), early)
    for link in list(names(samples).values())[:1]:
        yield f"Held by {holder(link)}."


def _growth_words(one: Growth) -> str:
    size = f" ({format_bytes(round(one.nbytes))})" if one.nbytes >= KIB else ""
    return f"{one.kind} by {_rounded(one.number)}{size}"


def _bytes_first(name: str) -> tuple[bool, str]:
    return name in _NUMBERS, name


def _least(name: str) -> float:
    return _NUMBERS.get(name, _LEAST_HOST_BYTES if name == HOST else _LEAST_BYTES)


def _subject(name: str) -> str:
    if name == HOST:
        return "The resident memory of the process"
    return f"The number of {name}" if name in _NUMBERS else f"Memory in use on {name}"


def _amount(name: str, value: float) -> str:
    if name not in _NUMBERS:
        return format_bytes(round(value))
    return _rounded(value)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
