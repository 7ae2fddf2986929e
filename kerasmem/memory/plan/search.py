"""Search for the fastest strategy within a memory limit."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kerasmem.checks import Whole, invalid
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import accumulator_bytes
from kerasmem.memory.plan.parts import main_part, recorded_step
from kerasmem.memory.plan.steps import (
    WORK_PER_BYTE,
    CallCosts,
    Pieces,
    RecordedStep,
    Strategy,
    recorded,
)

RECOMPUTE, EIGHT_BITS, MICRO_BATCHES = "recompute", "8 bits", "micro-batches"
CHOICES = (RECOMPUTE, EIGHT_BITS, MICRO_BATCHES)
"""Ways to need less memory that do not change the training."""

_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Numbers of micro-batches to try."""

_SMALL = 40_000
"""Operations to simulate if every strategy is tried."""

_FLOAT = 4
_LOWEST = 8
"""Number of strategies to simulate in search of the lowest peak."""

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


def candidates(calls: Sequence[CallCosts], fixed: frozenset[int]) -> list[Pieces]:
    """Return sets of pieces to try, without duplicates."""
    edges = list(_edges(calls, fixed))
    sizes = sorted({edge.inside_bytes for edge in edges if edge.again})
    total_bytes = sum(call.kept_bytes for call in calls)
    total_work = sum(call.work for call in calls) or 1.0
    sets: dict[Pieces, None] = {(): None}
    for size in _spread(sizes, _SIZES):
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
class Outline:
    """Bounds of a strategy, known without a simulation.

    `bytes` is a lower bound of the activations at the peak. `work` is the estimated
    time of the recomputation.
    """

    bytes: int
    work: float


def outline(calls: Sequence[CallCosts], pieces: Pieces) -> Outline:
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


@dataclass(frozen=True)
class Figures:
    """Estimated peak in bytes, and additional time relative to the plain step."""

    peak_bytes: int
    extra_time: float


class Search:
    """Strategies of one training step and their figures.

    Args:
        request: The step.
        choices: Permitted choices, from `CHOICES`.

    Attributes:
        request: The step.
        step: The recorded step of a whole batch.
        splits: Whether to try micro-batches.
        plain: Figures of the step without a strategy.
    """

    def __init__(self, request: Request, choices: Sequence[str]) -> None:
        self.request = request
        self._choices = choices
        self.splits = MICRO_BATCHES in choices
        self.step = recorded_step(request)
        self._steps = {1: self.step}
        self._figures: dict[Strategy, Figures] = {}
        variables = request.model.trainable_variables
        self._sums = sum(_FLOAT * math.prod(v.shape) for v in variables)
        self._data_bytes = sum(
            x.nbytes for x in self.step.record.step.results if x.kind == "input"
        )
        self._plain_work = 0.0
        self._factors: dict[tuple[bool, bool], float] = {}
        self.plain = self.figures(Strategy())

    @cached_property
    def _pieces(self) -> list[Pieces]:
        if RECOMPUTE not in self._choices:
            return [()]
        return candidates(self.step.calls, self.step.fixed)

    @cached_property
    def _is_small(self) -> bool:
        return len(self._pieces) * len(self.step.ops) < _SMALL

    def step_of(self, micro_batches: int) -> RecordedStep:
        """Return the step of one of several micro-batches."""
        if micro_batches not in self._steps:
            first, size = self.step, -(-self.request.batch_size // micro_batches)
            request = first.request.with_batch_size(size)
            self._steps[micro_batches] = recorded(
                request, first.path, first.graph, first.fixed_bytes
            )
        return self._steps[micro_batches]

    def figures(self, strategy: Strategy) -> Figures:
        """Return the figures of a strategy."""
        if strategy not in self._figures:
            step = self.step_of(strategy.micro_batches)
            simulation = step.simulate(strategy)
            work, parts = simulation.work, strategy.micro_batches
            if parts > 1:
                # Each part reads and writes the accumulated gradients.
                work *= self.request.batch_size / step.request.batch_size
                work += parts * 3 * WORK_PER_BYTE * self._sums
            work += simulation.update_work
            self._plain_work = self._plain_work or work
            extra = work / self._plain_work - 1
            peak_bytes = simulation.peak_bytes + self.beside_parts(strategy)
            self._figures[strategy] = Figures(peak_bytes, extra)
        figures = self._figures[strategy]
        peak_bytes = round(self._factor(strategy) * figures.peak_bytes)
        return replace(figures, peak_bytes=peak_bytes)

    def correct(self, strategy: Strategy, factor: float) -> None:
        """Multiply the peaks of all similar strategies, after another estimate."""
        self._factors[_kind(strategy)] = factor * self._factor(strategy)

    def _factor(self, strategy: Strategy) -> float:
        plain = self._factors.get(_kind(Strategy()), 1.0)
        return self._factors.get(_kind(strategy), plain)

    def beside_parts(self, strategy: Strategy) -> int:
        """Return the bytes in use outside of the step of one micro-batch.

        These are the waiting samples and the accumulated gradients.
        """
        parts, data = strategy.micro_batches, self._data_bytes
        sums = accumulator_bytes(self.request.model)
        return 0 if parts == 1 else sums + data - data // parts

    def fastest(self, limit_bytes: int) -> Strategy | None:
        """Return the fastest strategy within a limit, or None."""

        def fits(strategy: Strategy) -> bool:
            return self.figures(strategy).peak_bytes <= limit_bytes

        counts = list(self._counts())
        plain = (Strategy(micro_batches=count) for count in counts)
        best = next(filter(fits, plain), None) or self.lowest()
        if not fits(best):
            return None
        for count in counts:
            if best == Strategy(micro_batches=count):
                break
            for strategy, least_bytes, least_time in self._front(count):
                if least_time >= self.figures(best).extra_time:
                    break
                if least_bytes <= limit_bytes and fits(strategy):
                    best = min(best, strategy, key=self._cost)
            others = filter(fits, self._packed(count))
            best = min([best, *others], key=self._cost)
        return best

    def lowest(self) -> Strategy:
        """Return the strategy with the lowest peak."""
        counts = list(self._counts())
        strategies = [Strategy()]
        for count in {1, counts[-1]}:
            front = [strategy for strategy, _, _ in self._front(count)]
            most = len(front) if self._is_small else _LOWEST
            strategies += [*front[-most:], *self._packed(count)]
        return min(strategies, key=self._size)

    def faster(self, strategy: Strategy) -> Strategy | None:
        """Return the known strategy of the lowest peak among the faster ones."""
        extra_time = self.figures(strategy).extra_time
        faster = [t for t, f in self._figures.items() if f.extra_time < extra_time]
        return min(faster, key=self._size, default=None)

    def _cost(self, strategy: Strategy) -> tuple[float, int]:
        figures = self.figures(strategy)
        return figures.extra_time, figures.peak_bytes

    def _size(self, strategy: Strategy) -> tuple[int, float]:
        figures = self.figures(strategy)
        return figures.peak_bytes, figures.extra_time

    def _counts(self) -> Iterator[int]:
        yield 1
        if self.splits:
            size = self.request.batch_size
            parts = (-(-size // -(-size // count)) for count in _COUNTS if count < size)
            yield from dict.fromkeys([*parts, size][size == 1 :])

    def _front(self, count: int) -> list[tuple[Strategy, float, float]]:
        """Return strategies with lower bounds of peak and time, fastest first.

        In large models, strategies that are slower than another one and seem to save
        less are left out.
        """
        step, plain = self.step_of(count), self.figures(Strategy(micro_batches=count))
        outlines = {pieces: outline(step.calls, pieces) for pieces in self._pieces}
        front: list[tuple[Strategy, float, float]] = []
        least_bytes = math.inf
        for pieces, bounds in sorted(outlines.items(), key=lambda each: each[1].work):
            if self._is_small or bounds.bytes < least_bytes:
                least_bytes = bounds.bytes
                extra = plain.extra_time + count * bounds.work / self._plain_work
                strategy = Strategy(pieces, micro_batches=count)
                least = self._factor(strategy) * (step.fixed_bytes + bounds.bytes)
                front.append((strategy, least, extra))
        return front

    def _packed(self, count: int) -> list[Strategy]:
        """Return the strategy that stores everything in 8 bits, if permitted."""
        if EIGHT_BITS in self._choices and self.step_of(count).packed:
            return [Strategy(in_8_bits=True, micro_batches=count)]
        return []


def _kind(strategy: Strategy) -> tuple[bool, bool]:
    return bool(strategy.pieces), strategy.in_8_bits


def requested(step: RecordedStep, segments: int | Sequence[str]) -> Strategy:
    """Return the strategy with the requested segments.

    Raises:
        ConfigError: If the model cannot be cut in this way.
    """
    if isinstance(segments, int):
        Whole(2, len(step.calls)).check("rematerialize", "segments", segments)
        return Strategy(even(step.calls, step.fixed, segments))
    names = list(step.names)
    unknown = [name for name in segments if name not in names]
    if isinstance(segments, str) or unknown or not segments:
        part = main_part(step.request.model, step.path).name
        valid = f"names of layers of {part!r}: {', '.join(names)}"
        raise invalid("rematerialize", "segments", segments, valid)
    starts = sorted({names.index(name) for name in segments} | {0})
    return Strategy(split(list(itertools.pairwise(starts)), step.fixed))
