"""Recommends an option from measurements."""

from collections.abc import Sequence
from dataclasses import replace

from kerasmem import backends
from kerasmem.memory.nvidia import count_cards
from kerasmem.memory.settings import configure
from kerasmem.records import MEASURED, VariantFigures
from kerasmem.units import format_bytes, format_ms, format_number


def leave_room() -> None:
    """Use memory growth on GPUs for this process and its child processes.

    Call it before the first model or tensor, otherwise it has no effect.
    """
    settings = backends.current().settings()
    if settings.cards(count_cards()) and not settings.started():
        configure(growth=True)


_LEAST_TIME = 0.05
_LEAST_MEMORY, _LEAST_ESTIMATED = 0.05, 0.10
"""Minimum relative gains. Estimates are not accurate enough for smaller ones."""


def combined(first: VariantFigures, second: VariantFigures) -> VariantFigures:
    """Merge two runs of one variant, with the spread of both."""
    if first.reason or second.reason:
        return second if first.reason else first
    step_ms = (_number(first.step_ms) + _number(second.step_ms)) / 2
    samples = first.batch_size * first.steps_per_update
    peaks = [p for p in (first.peak_bytes, second.peak_bytes) if p is not None]
    lows = [p for p in (first.peak_low_bytes, second.peak_low_bytes) if p is not None]
    return replace(
        first,
        peak_bytes=max(peaks, default=None),
        peak_low_bytes=min(lows, default=None),
        step_ms=step_ms,
        step_low_ms=min(_number(first.step_low_ms), _number(second.step_low_ms)),
        step_high_ms=max(_number(first.step_high_ms), _number(second.step_high_ms)),
        steps=first.steps + second.steps,
        samples_per_second=1e3 * samples / step_ms,
    )


def noise(first: VariantFigures, second: VariantFigures) -> float | None:
    """Return the relative difference of the step times of two runs, 0.05 for 5 %."""
    if first.step_ms is None or second.step_ms is None:
        return None
    return max(first.step_ms, second.step_ms) / min(first.step_ms, second.step_ms) - 1


def fastest(
    variants: Sequence[VariantFigures], noise: float | None
) -> VariantFigures | None:
    """Return the run that is clearly faster than the first, or None.

    A run that needs more memory is returned only if no faster run does without.

    The first run is the model as compiled, and `noise` the relative time difference of
    two such runs.
    """
    base, *others = variants
    if base.reason:
        return None
    candidates = [v for v in others if not v.reason and _is_faster(v, base, noise)]
    candidates = [v for v in candidates if not _needs_less(base, v)] or candidates
    return min(candidates, key=lambda v: _number(v.step_ms), default=None)


def recommendation(variants: Sequence[VariantFigures], noise: float | None) -> str:
    """Return the recommended variant and its cost in one or two sentences."""
    base, *others = variants
    ran = [variant for variant in others if not variant.reason]
    if base.reason:
        return _without_base(base, ran)
    faster = fastest(variants, noise)
    leaner = _leanest(base, ran)
    sentences = [_about_time(base, faster)]
    if leaner is None:
        sentences.append("No option needs clearly less memory.")
    elif leaner is not faster:
        sentences.append(_about_memory(base, leaner, noise))
    return " ".join(sentences)


def _is_faster(one: VariantFigures, other: VariantFigures, noise: float | None) -> bool:
    apart = _number(one.step_high_ms) * (1 + (noise or 0.0))
    enough = _number(one.step_ms) * (1 + _LEAST_TIME) <= _number(other.step_ms)
    return enough and apart < _number(other.step_low_ms)


def _needs_less(one: VariantFigures, other: VariantFigures) -> bool:
    if one.peak_source is None or one.peak_source != other.peak_source:
        return False  # the two sources count different allocations
    least = _LEAST_MEMORY if one.peak_source == MEASURED else _LEAST_ESTIMATED
    return _number(one.peak_bytes) <= (1 - least) * _number(other.peak_low_bytes)


def _leanest(
    base: VariantFigures, ran: Sequence[VariantFigures]
) -> VariantFigures | None:
    candidates = [variant for variant in ran if _needs_less(variant, base)]
    return min(candidates, key=lambda v: _number(v.peak_bytes), default=None)


def _about_time(base: VariantFigures, faster: VariantFigures | None) -> str:
    if faster is None:
        return (
            "Keep the current options: no other is faster beyond the spread of times."
        )
    room, memory = "", "with about as much memory"
    if _needs_less(faster, base):
        memory = f"with a peak of {_peak(faster)} instead of {_peak(base)}"
    elif _needs_less(base, faster):
        room = " if memory allows"
        memory = f"for a peak of {_peak(faster)} instead of {_peak(base)}"
    elif faster.peak_source is None or faster.peak_source != base.peak_source:
        memory = "but its memory could not be compared"
    speed = _speed(faster, base)
    return f"Use {faster.name} ({faster.how}){room}: {speed}, {memory}."


def _about_memory(
    base: VariantFigures, leaner: VariantFigures, noise: float | None
) -> str:
    price = "with no clear difference in time"
    if _is_faster(base, leaner, noise):
        ratio = _number(leaner.step_ms) / _number(base.step_ms)
        price = f"at {format_number(ratio)} times the step time"
    elif _is_faster(leaner, base, noise):
        price = f"which is also faster: {_speed(leaner, base)}"
    return f"{_if_short(base, leaner)}, {price}."


def _if_short(base: VariantFigures, leaner: VariantFigures) -> str:
    return (
        f"If memory is short, use {leaner.name} ({leaner.how}): a peak of "
        f"{_peak(leaner)} instead of {_peak(base)}"
    )


def _without_base(base: VariantFigures, ran: Sequence[VariantFigures]) -> str:
    if not ran:
        return f"No option ran. As compiled: {base.reason}"
    best = min(ran, key=lambda v: v.peak_bytes or float("inf"))
    return (
        f"The model as compiled does not run: {base.reason}. Use {best.name} "
        f"({best.how}): a peak of {_peak(best)}, "
        f"{format_ms(_number(best.step_ms))} per step."
    )


def _speed(one: VariantFigures, base: VariantFigures) -> str:
    ratio = _number(base.step_ms) / _number(one.step_ms)
    return (
        f"{format_number(ratio)} times as fast ({format_ms(_number(one.step_ms))} "
        f"instead of {format_ms(_number(base.step_ms))} per step)"
    )


def _peak(variant: VariantFigures) -> str:
    if variant.peak_bytes is None:
        return "unknown size"
    size = format_bytes(variant.peak_bytes)
    return size if variant.peak_source == MEASURED else f"{size} (estimated)"


def _number(value: float | None) -> float:
    return 0.0 if value is None else value
