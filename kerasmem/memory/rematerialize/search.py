"""Which calls to compute again together: plans from few bytes to little time.

What waits for the backward pass is, of a piece that is computed again, only what it
hands on; of any other call, all that its gradient reads. While the gradients of a piece
are computed, its own activations are there too. So two numbers are played with: the
most bytes that a piece may have inside, and the price of time in bytes. For each pair
the shortest path over all places to cut gives the best plan.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kerasmem.memory.rematerialize.costs import Call

Pieces = tuple[tuple[int, int], ...]
"""Ranges of calls, ascending; each is computed again as one. The rest keeps all."""

_MOST_CUTS = 160
_SIZES = 8
_PRICES = (0.0, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class _Edge:
    """A piece that is computed again, or a call that keeps all."""

    start: int
    end: int
    again: bool
    kept_bytes: int
    inside_bytes: int
    work: float


def plans(calls: Sequence[Call], fixed: frozenset[int]) -> list[Pieces]:
    """Return plans worth a closer look, each once.

    Args:
        calls: costs of the calls.
        fixed: numbers of the calls that cannot be computed again.
    """
    edges = list(_edges(calls, fixed))
    sizes = sorted({edge.inside_bytes for edge in edges if edge.again})
    total_bytes = sum(call.kept_bytes for call in calls)
    total_work = sum(call.work for call in calls) or 1.0
    found: dict[Pieces, None] = {(): None}
    for size in _spread(sizes, _SIZES):
        allowed = [e for e in edges if not e.again or e.inside_bytes <= size]
        for price in _PRICES:
            best = _shortest(allowed, len(calls), price * total_bytes / total_work)
            found[best] = None
            found[best[:-1]] = None  # the last piece is needed at once
    return list(found)


def even(calls: Sequence[Call], fixed: frozenset[int], count: int) -> Pieces:
    """Return `count` pieces with about as much inside; the last of them keeps all.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).

    Args:
        calls: costs of the calls.
        fixed: numbers of the calls that cannot be computed again.
        count: number of pieces, from 2.
    """
    sums = list(itertools.accumulate((c.kept_bytes for c in calls), initial=0))
    crossing = _crossing(calls)
    share = sums[-1] / count
    cuts = [0]
    for number in range(1, count):
        places = range(cuts[-1] + 1, len(calls) - count + number + 1)
        cuts.append(
            min(
                places,
                key=lambda at: abs(sums[at] - number * share) + crossing[at],
            )
        )
    return split(list(itertools.pairwise(cuts)), fixed)


def split(pieces: Sequence[tuple[int, int]], fixed: frozenset[int]) -> Pieces:
    """Return the pieces without the calls that cannot be computed again."""
    found: list[tuple[int, int]] = []
    for start, end in pieces:
        edges = [start - 1, *(n for n in range(start, end) if n in fixed), end]
        found += [(a + 1, b) for a, b in itertools.pairwise(edges) if a + 1 < b]
    return tuple(found)


def _crossing(calls: Sequence[Call]) -> list[int]:
    """Return the bytes handed over each place between two calls."""
    found = [0] * (len(calls) + 1)
    for number, call in enumerate(calls):
        for place in range(number + 1, min(call.last_use, len(calls)) + 1):
            found[place] += call.output_bytes
    return found


def _cuts(calls: Sequence[Call]) -> list[int]:
    """Return the places where a cut is worth a thought."""
    places = list(range(1, len(calls)))
    if len(places) > _MOST_CUTS:
        crossing = _crossing(calls)
        places = [
            at
            for at in places
            if crossing[at] <= min(crossing[at - 1] or crossing[at], crossing[at + 1])
        ]
    return [0, *_spread(places, _MOST_CUTS), len(calls)]


def _edges(calls: Sequence[Call], fixed: frozenset[int]) -> Iterator[_Edge]:
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


def _again(calls: Sequence[Call], start: int, end: int) -> _Edge:
    piece = range(start, end)
    handed = sum(calls[n].output_bytes for n in piece if calls[n].last_use >= end)
    needed: set[int] = set()
    for number in reversed(piece):
        call = calls[number]
        if call.needs_itself or number in needed:
            needed.add(number)
            needed |= call.uses
        elif call.reads_uses:
            needed |= call.uses
    work = sum(calls[n].work for n in piece if n in needed)
    inside = sum(calls[n].kept_bytes for n in piece)
    return _Edge(
        start, end, again=True, kept_bytes=handed, inside_bytes=inside, work=work
    )


def _shortest(edges: Sequence[_Edge], end: int, price: float) -> Pieces:
    """Return the pieces of the path with the least bytes and time."""
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
    """Return at most `count` of the values, evenly spread, the last one among them."""
    if len(values) <= count:
        return list(values)
    step = len(values) / count
    return sorted({values[round((n + 1) * step) - 1] for n in range(count)})
