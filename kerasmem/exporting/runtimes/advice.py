"""Which form to use for what, from the figures. A difference within noise is none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kerasmem.records import RuntimeAdvice, RuntimeFigures
from kerasmem.units import format_bytes, format_ms

RESIDENT_NOISE = 0.05
"""Resident memory of two runs of the same process differs by up to this much."""


@dataclass(frozen=True)
class _Figure:
    """A figure of which less is better, and how low another measurement may find it."""

    value: float
    low: float
    text: str


def advise(runtimes: Sequence[RuntimeFigures]) -> tuple[RuntimeAdvice, ...]:
    """Return which of `runtimes` to use for what: always the one of the least figure.

    Args:
        runtimes: the forms; the first is the model as it is. Those with a reason, or
            without the figure, are not considered.
    """
    sizes = [time.batch_size for time in runtimes[0].times]
    found = [
        _best(f"fastest, batch of {size}", runtimes, _time_of(size)) for size in sizes
    ]
    found += [
        _best("least memory, runtime included", runtimes, _process),
        _best("smallest file", runtimes, _bytes_of("file_bytes")),
    ]
    alone = [each for each in runtimes if not each.needs_keras]
    found += [
        _best(f"fastest without Keras, batch of {size}", alone, _time_of(size))
        for size in sizes[:1]
    ]
    within = [each for each in runtimes if each.needs_keras]
    found.append(_best("least weights in Keras", within, _bytes_of("weight_bytes")))
    return tuple(advice for advice in found if advice is not None)


def _best(
    use: str,
    runtimes: Sequence[RuntimeFigures],
    figure: Callable[[RuntimeFigures], _Figure | None],
) -> RuntimeAdvice | None:
    known = [
        (each, found)
        for each in runtimes
        if not each.reason and (found := figure(each)) is not None
    ]
    if not known:
        return None
    best, least = min(known, key=lambda pair: pair[1].value)
    others = [
        each.name
        for each, found in known
        if each is not best and found.low <= least.value
    ]
    told = [f"{use[0].upper()}{use[1:]}: {best.name}, {least.text}"]
    first, base = known[0]
    if first is not best and first.name not in others:
        told.append(f" ({first.name}: {base.text})")
    told.append(_how_exact(best))
    if others:
        told.append(f"; not clearly worse: {'; '.join(others)}")
    return RuntimeAdvice(use, best.name, tuple(others), f"{''.join(told)}.")


def _how_exact(best: RuntimeFigures) -> str:
    """Return what a form changes, where that is more than rounding of floats."""
    if best.difference is None or best.difference <= 1e-4:
        return ""
    return f"; outputs differ by up to {100 * best.difference:.2g} %"


def _time_of(batch_size: int) -> Callable[[RuntimeFigures], _Figure | None]:
    def figure(runtime: RuntimeFigures) -> _Figure | None:
        time = runtime.time(batch_size)
        if time is None:
            return None
        ms = time.milliseconds
        return _Figure(ms, time.low_ms, format_ms(ms))

    return figure


def _bytes_of(name: str) -> Callable[[RuntimeFigures], _Figure | None]:
    def figure(runtime: RuntimeFigures) -> _Figure | None:
        size = getattr(runtime, name)
        return None if size is None else _Figure(size, size, format_bytes(size))

    return figure


def _process(runtime: RuntimeFigures) -> _Figure | None:
    size = runtime.process_bytes
    if size is None:
        return None
    return _Figure(size, size / (1 + RESIDENT_NOISE), format_bytes(size))
