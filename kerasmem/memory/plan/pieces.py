"""Sets of pieces of a model that could be recomputed in the backward pass."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kerasmem.memory.compress_activations.plan import Ranges
from kerasmem.memory.plan.steps import CallCosts

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


def candidates(calls: Sequence[CallCosts], fixed: frozenset[int]) -> list[Ranges]:
    """Return sets of pieces to try, without duplicates."""
    edges = list(_edges(calls, fixed))
    sizes = sorted({edge.inside_bytes for edge in edges if edge.again})
    total_bytes = sum(call.kept_bytes for call in calls)
    total_work = sum(call.work for call in calls) or 1.0
    sets: dict[Ranges, None] = {(): None}
    for size in spread(sizes, _SIZES):
        edges_within = [e for e in edges if not e.again or e.inside_bytes <= size]
        for price in _PRICES:
            best = _shortest(edges_within, len(calls), price * total_bytes / total_work)
            sets[best] = None
            sets[best[:-1]] = None  # the last piece is needed immediately
    root = round(len(calls) ** 0.5)
    for count in {2, 3, 4, 6, root}:
        if 1 < count <= len(calls):
            sets[even(calls, fixed, count)] = None
    return list(sets)


def even(calls: Sequence[CallCosts], fixed: frozenset[int], count: int) -> Ranges:
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


def split(pieces: Sequence[tuple[int, int]], fixed: frozenset[int]) -> Ranges:
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
    return [0, *spread(places, _MOST_CUTS), len(calls)]


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


def _shortest(edges: Sequence[_Edge], end: int, price: float) -> Ranges:
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


def spread(values: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the values, evenly spread, with the last one."""
    if len(values) <= count:
        return list(values)
    step = len(values) / count
    return sorted({values[round((n + 1) * step) - 1] for n in range(count)})


@dataclass(frozen=True)
class Outline:
    """Bounds of a strategy, known without a simulation.

    `bytes` is a lower bound of the activations at the peak. `work` is the estimated
    time of the recomputation.
    """

    bytes: int
    work: float


def outline(calls: Sequence[CallCosts], pieces: Ranges) -> Outline:
    """Return the bounds of recomputed pieces."""
    total = most = at = 0
    work = 0.0
    for start, end in (*pieces, (len(calls),) * 2):
        total += sum(call.kept_bytes for call in calls[at:start])
        if start < end:
            edge = _again(calls, start, end)
            total, work = total + edge.kept_bytes, work + edge.work
            most = max(most, total + edge.inside_bytes)
        at = end
    return Outline(max(total, most), work)
