"""Search for the fastest strategy within a memory limit."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kerasmem.checks import Whole, invalid
from kerasmem.memory.compress_activations.plan import Ranges
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import accumulator_bytes, gradient_bytes
from kerasmem.memory.plan.pieces import candidates, even, outline, split, spread
from kerasmem.memory.plan.steps import (
    WORK_PER_BYTE,
    RecordedStep,
    Strategy,
    recorded,
    recorded_step,
)

RECOMPUTE, EIGHT_BITS, MICRO_BATCHES = "recompute", "8 bits", "micro-batches"
CHOICES = (RECOMPUTE, EIGHT_BITS, MICRO_BATCHES)
"""Ways to need less memory that do not change the training."""

_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Numbers of micro-batches to try."""

_SMALL = 40_000
"""Operations to simulate if every strategy is tried."""

_LOWEST = 8
"""Number of strategies to simulate in search of the lowest peak."""

_MIXED = 4
"""Number of sets of pieces to combine with activations in 8 bits."""

_SHARES = 8
"""Number of equal parts of the saved bytes. The first parts are stored in 8 bits."""


@dataclass(frozen=True)
class Figures:
    """Estimated peak in bytes, and additional time relative to the plain step."""

    peak_bytes: int
    extra_time: float


Front = list[tuple[Strategy, float, float]]
"""Strategies, each with lower bounds of its peak in bytes and of its extra time."""


class Search:
    """Strategies of one training step and their figures.

    Args:
        request: The step.
        choices: Permitted choices, from `CHOICES`.

    Attributes:
        request: The step.
        choices: Permitted choices.
        step: The recorded step of a whole batch.
        splits: Whether to try micro-batches.
        plain: Figures of the step without a strategy.
    """

    def __init__(self, request: Request, choices: Sequence[str]) -> None:
        self.request = request
        self.choices = choices
        self.splits = MICRO_BATCHES in choices
        self.step = recorded_step(request)
        self._steps = {1: self.step}
        self._figures: dict[Strategy, Figures] = {}
        self._gradient_bytes = gradient_bytes(request.model)
        self._accumulator_bytes = accumulator_bytes(request.model)
        self._data_bytes = sum(
            x.nbytes for x in self.step.record.step.results if x.kind == "input"
        )
        self._plain_work = 0.0
        self._factors: dict[tuple[bool, bool, int], float] = {}
        self.plain = self.figures(Strategy())

    @cached_property
    def _pieces(self) -> list[Ranges]:
        if RECOMPUTE not in self.choices:
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
                work += parts * 3 * WORK_PER_BYTE * self._gradient_bytes
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
        total = factor * self._factor(strategy)
        recomputes, packs, _ = kind = _kind(strategy)
        self._factors[kind] = self._factors[recomputes, packs, 0] = total

    def _factor(self, strategy: Strategy) -> float:
        recomputes, packs, _ = kind = _kind(strategy)
        kinds = kind, (recomputes, packs, 0), _kind(Strategy())
        return next((self._factors[k] for k in kinds if k in self._factors), 1.0)

    def beside_parts(self, strategy: Strategy) -> int:
        """Return the bytes in use outside of the step of one micro-batch.

        These are the waiting samples and the accumulated gradients.
        """
        parts, data = strategy.micro_batches, self._data_bytes
        return 0 if parts == 1 else self._accumulator_bytes + data - data // parts

    def fastest(self, limit_bytes: int) -> Strategy | None:
        """Return the fastest strategy within a limit, or None."""
        counts = list(self._counts())
        plain = (Strategy(micro_batches=count) for count in counts)
        fitting = (s for s in plain if self._fits(s, limit_bytes))
        best = next(fitting, None) or self.lowest()
        if not self._fits(best, limit_bytes):
            return None
        for count in counts:
            if best == Strategy(micro_batches=count):
                break
            best = self._improved(best, count, limit_bytes)
        return best

    def _improved(self, best: Strategy, count: int, limit_bytes: int) -> Strategy:
        """Return a faster strategy with a number of micro-batches, or `best`."""
        front = self._front(count)
        for strategy, least_bytes, least_time in front:
            if least_time >= self.figures(best).extra_time:
                break
            if least_bytes <= limit_bytes and self._fits(strategy, limit_bytes):
                best = min(best, strategy, key=self._cost)
        for strategy, _, least_time in self._mixed(front):
            if least_time >= self.figures(best).extra_time:
                break
            with_codes = self._in_8_bits(strategy, limit_bytes) or best
            best = min(best, with_codes, key=self._cost)
        return best

    def _fits(self, strategy: Strategy, limit_bytes: int) -> bool:
        return self.figures(strategy).peak_bytes <= limit_bytes

    def lowest(self) -> Strategy:
        """Return the strategy with the lowest peak."""
        counts = list(self._counts())
        strategies = [Strategy()]
        for count in {1, counts[-1]}:
            front = self._front(count)
            most = len(front) if self._is_small else _LOWEST
            everything = self.step.all_calls
            strategies += [strategy for strategy, _, _ in front[-most:]]
            others = (strategy for strategy, _, _ in self._mixed(front))
            strategies += [replace(one, in_8_bits=everything) for one in others]
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

    def _front(self, count: int) -> Front:
        """Return strategies with lower bounds of peak and time, fastest first.

        In large models, strategies that are slower than another one and seem to save
        less are left out.
        """
        step, plain = self.step_of(count), self.figures(Strategy(micro_batches=count))
        passes = self.request.batch_size / step.request.batch_size
        outlines = {pieces: outline(step.calls, pieces) for pieces in self._pieces}
        front: Front = []
        least_bytes = math.inf
        for pieces, bounds in sorted(outlines.items(), key=lambda each: each[1].work):
            if self._is_small or bounds.bytes < least_bytes:
                least_bytes = bounds.bytes
                extra = plain.extra_time + passes * bounds.work / self._plain_work
                strategy = Strategy(pieces, micro_batches=count)
                least = self._factor(strategy) * (step.fixed_bytes + bounds.bytes)
                front.append((strategy, least, extra))
        return front

    def _mixed(self, front: Front) -> Front:
        """Return strategies of the front to combine with 8 bits, if permitted."""
        if EIGHT_BITS not in self.choices or not self.step.becomes_smaller:
            return []
        places = spread(range(1, len(front)), _MIXED)
        return [front[place] for place in (0, *places)]

    def _in_8_bits(self, strategy: Strategy, limit_bytes: int) -> Strategy | None:
        """Return a strategy with as few activations in 8 bits as fit, or None.

        These are the first activations, which are saved for the longest time.
        """
        whole = replace(strategy, in_8_bits=self.step.all_calls)
        if not self._fits(whole, limit_bytes):
            return None
        sums = list(itertools.accumulate(call.kept_bytes for call in self.step.calls))
        shares = (sums[-1] * n / _SHARES for n in range(1, _SHARES))
        ends = [bisect_left(sums, share) + 1 for share in shares]
        some = [replace(strategy, in_8_bits=((0, end),)) for end in ends]
        place = bisect_left(some, x=1, key=lambda one: self._fits(one, limit_bytes))
        return [*some, whole][place]


def _kind(strategy: Strategy) -> tuple[bool, bool, int]:
    changes = bool(strategy.pieces), bool(strategy.in_8_bits)
    return *changes, strategy.micro_batches


def requested(step: RecordedStep, segments: int | Sequence[str]) -> Strategy:
    """Return the strategy with the requested segments.

    Raises:
        ConfigError: If the model cannot be cut in this way.
    """
    if isinstance(segments, int):
        Whole(2, len(step.calls)).check("rematerialize", "segments", segments)
        return Strategy(even(step.calls, step.fixed, segments))
    names = list(step.names)
    is_list = isinstance(segments, Sequence) and not isinstance(segments, str)
    if not is_list or not segments or not {*segments} <= {*names}:
        valid = f"names of layers of {step.part.name!r}: {', '.join(names)}"
        raise invalid("rematerialize", "segments", segments, valid)
    starts = sorted({names.index(name) for name in segments} | {0})
    return Strategy(split(list(itertools.pairwise(starts)), step.fixed))
