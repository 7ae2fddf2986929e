"""Search for the ranges of calls to recompute."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kerasmem.checks import Whole, invalid
from kerasmem.errors import ConfigError
from kerasmem.memory.rematerialize.costs import (
    CallCosts,
    Pieces,
    RecordedStep,
    Simulation,
)
from kerasmem.memory.rematerialize.plan import Piece, Rematerialization, main_part
from kerasmem.units import format_bytes

_MOST_CUTS = 160
_SIZES = 8
_PRICES = (0.0, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class _Edge:
    """A recomputed piece, or a call that saves its activations."""

    start: int
    end: int
    again: bool
    kept_bytes: int
    inside_bytes: int
    work: float


def plans(calls: Sequence[CallCosts], fixed: frozenset[int]) -> list[Pieces]:
    """Return candidate plans without duplicates."""
    edges = list(_edges(calls, fixed))
    sizes = sorted({edge.inside_bytes for edge in edges if edge.again})
    total_bytes = sum(call.kept_bytes for call in calls)
    total_work = sum(call.work for call in calls) or 1.0
    candidates: dict[Pieces, None] = {(): None}
    for size in _spread(sizes, _SIZES):
        edges_within = [e for e in edges if not e.again or e.inside_bytes <= size]
        for price in _PRICES:
            best = _shortest(edges_within, len(calls), price * total_bytes / total_work)
            candidates[best] = None
            candidates[best[:-1]] = None  # the last piece is needed immediately
    return list(candidates)


def even(calls: Sequence[CallCosts], fixed: frozenset[int], count: int) -> Pieces:
    """Return `count` pieces of similar size. The last piece saves its activations.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
    """
    sums = list(itertools.accumulate((c.kept_bytes for c in calls), initial=0))
    crossing = _crossing(calls)
    share = sums[-1] / count
    cuts = [0]
    for number in range(1, count):
        places = range(cuts[-1] + 1, len(calls) - count + number + 1)
        cuts.append(
            min(places, key=lambda at: abs(sums[at] - number * share) + crossing[at])
        )
    return split(list(itertools.pairwise(cuts)), fixed)


def split(pieces: Sequence[tuple[int, int]], fixed: frozenset[int]) -> Pieces:
    """Return the pieces without the calls that cannot be recomputed."""
    parts: list[tuple[int, int]] = []
    for start, end in pieces:
        edges = [start - 1, *(n for n in range(start, end) if n in fixed), end]
        parts += [(a + 1, b) for a, b in itertools.pairwise(edges) if a + 1 < b]
    return tuple(parts)


def _crossing(calls: Sequence[CallCosts]) -> list[int]:
    crossing_bytes = [0] * (len(calls) + 1)
    for number, call in enumerate(calls):
        for place in range(number + 1, min(call.last_use, len(calls)) + 1):
            crossing_bytes[place] += call.output_bytes
    return crossing_bytes


def _cuts(calls: Sequence[CallCosts]) -> list[int]:
    places = list(range(1, len(calls)))
    if len(places) > _MOST_CUTS:
        crossing = _crossing(calls)
        places = [
            at
            for at in places
            if crossing[at] <= min(crossing[at - 1] or crossing[at], crossing[at + 1])
        ]
    return [0, *_spread(places, _MOST_CUTS), len(calls)]


def _edges(calls: Sequence[CallCosts], fixed: frozenset[int]) -> Iterator[_Edge]:
    for number, call in enumerate(calls):
        yield _Edge(
            number,
            number + 1,
            again=False,
            kept_bytes=call.kept_bytes,
            inside_bytes=0,
            work=0.0,
        )
    for start, end in itertools.combinations(_cuts(calls), 2):
        if not any(number in fixed for number in range(start, end)):
            yield _again(calls, start, end)


def _again(calls: Sequence[CallCosts], start: int, end: int) -> _Edge:
    piece = range(start, end)
    output_bytes = sum(calls[n].output_bytes for n in piece if calls[n].last_use >= end)
    numbers: set[int] = set()
    for number in reversed(piece):
        call = calls[number]
        if call.needs_itself or number in numbers:
            numbers.add(number)
            numbers |= call.uses
        elif call.reads_uses:
            numbers |= call.uses
    work = sum(calls[n].work for n in piece if n in numbers)
    inside = sum(calls[n].kept_bytes for n in piece)
    return _Edge(
        start, end, again=True, kept_bytes=output_bytes, inside_bytes=inside, work=work
    )


def _shortest(edges: Sequence[_Edge], end: int, price: float) -> Pieces:
    best: list[float] = [0.0] + [float("inf")] * end
    came: dict[int, _Edge] = {}
    for edge in sorted(edges, key=lambda e: e.start):
        cost = best[edge.start] + edge.kept_bytes + price * edge.work
        if cost < best[edge.end]:
            best[edge.end], came[edge.end] = cost, edge
    pieces: list[tuple[int, int]] = []
    at = end
    while at:
        edge = came[at]
        if edge.again:
            pieces.append((edge.start, edge.end))
        at = edge.start
    return tuple(reversed(pieces))


def _spread(values: Sequence[int], count: int) -> list[int]:
    if len(values) <= count:
        return list(values)
    step = len(values) / count
    return sorted({values[round((n + 1) * step) - 1] for n in range(count)})


@dataclass(frozen=True)
class Chosen:
    """Ranges of calls to recompute, and the plan for the user."""

    pieces: Pieces
    plan: Rematerialization


def by_limit(step: RecordedStep, limit_bytes: int | None) -> Chosen:
    """Return the fastest plan within a limit, or the plan with the lowest peak.

    Raises:
        ConfigError: If no plan is within the limit.
    """
    simulations = {
        pieces: step.simulate(pieces)
        for pieces in (*plans(step.calls, step.fixed), _rooted(step))
    }
    lowest = min(
        simulations,
        key=lambda p: (simulations[p].peak_bytes, simulations[p].extra_time),
    )
    if limit_bytes is None:
        return _chosen(step, lowest, simulations[lowest])
    fitting = [
        p for p, figures in simulations.items() if figures.peak_bytes <= limit_bytes
    ]
    if not fitting:
        least, plain = simulations[lowest].peak_bytes, simulations[()].peak_bytes
        raise ConfigError(
            f"No plan is within the limit at batch size {step.request.batch_size}. "
            f"Expected: from {format_bytes(least)}, the lowest estimated peak "
            f"({format_bytes(plain)} without a plan). Received: memory_limit="
            f"{format_bytes(limit_bytes)}. Next: pass a higher limit or a smaller "
            "batch_size."
        )
    best = min(
        fitting, key=lambda p: (simulations[p].extra_time, simulations[p].peak_bytes)
    )
    return _chosen(step, best, simulations[best])


def by_segments(step: RecordedStep, segments: int | Sequence[str]) -> Chosen:
    """Return the plan with the requested pieces.

    Raises:
        ConfigError: If the model cannot be cut in this way.
    """
    if isinstance(segments, int):
        pieces = _by_number(step, segments)
    else:
        pieces = _by_names(step, segments)
    return _chosen(step, pieces, step.simulate(pieces))


def _rooted(step: RecordedStep) -> Pieces:
    count = round(len(step.calls) ** 0.5)
    return even(step.calls, step.fixed, count) if count > 1 else ()


def _by_number(step: RecordedStep, segments: int) -> Pieces:
    most = len(step.calls)
    Whole(2, most).check("rematerialize", "segments", segments)
    return even(step.calls, step.fixed, segments)


def _by_names(step: RecordedStep, segments: Sequence[str]) -> Pieces:
    names = list(step.names)
    unknown = [name for name in segments if name not in names]
    if isinstance(segments, str) or unknown or not segments:
        valid = f"names of layers of {_part_name(step)!r}: {', '.join(names)}"
        raise invalid("rematerialize", "segments", segments, valid)
    starts = sorted({names.index(name) for name in segments} | {0})
    return split(list(itertools.pairwise(starts)), step.fixed)


def _part_name(step: RecordedStep) -> str:
    return main_part(step.request.model, step.path).name


def _chosen(step: RecordedStep, pieces: Pieces, simulation: Simulation) -> Chosen:
    plan = Rematerialization(
        pieces=tuple(_pieces(step, pieces)),
        model_name=_part_name(step),
        batch_size=step.request.batch_size,
        peak_bytes=simulation.peak_bytes,
        plain_peak_bytes=step.simulate(()).peak_bytes,
        extra_time=simulation.extra_time,
    )
    return Chosen(pieces, plan)


def _pieces(step: RecordedStep, pieces: Pieces) -> list[Piece]:
    all_pieces: list[Piece] = []
    at = 0
    for start, end in (*pieces, (len(step.calls),) * 2):
        if at < start:
            all_pieces.append(_piece(step, at, start, recomputed=False))
        if start < end:
            all_pieces.append(_piece(step, start, end, recomputed=True))
        at = end
    return all_pieces


def _piece(step: RecordedStep, start: int, end: int, *, recomputed: bool) -> Piece:
    calls = step.calls[start:end]
    inside = sum(call.kept_bytes for call in calls)
    output_bytes = sum(call.output_bytes for call in calls if call.last_use >= end)
    return Piece(
        layers=tuple(step.names[start:end]),
        recomputed=recomputed,
        kept_bytes=output_bytes if recomputed else inside,
        recomputed_bytes=inside if recomputed else 0,
    )
