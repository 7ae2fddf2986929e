"""The contents of a memory plan: pieces, other options and offers."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from kerasmem.graph.layers import own_graph
from kerasmem.memory.estimate.variables import persistent_bytes
from kerasmem.memory.plan.memory_plan import MemoryPlan
from kerasmem.memory.plan.offers import HALF, MIXED, OPTIMIZERS, may_be_half
from kerasmem.memory.plan.parts import main_part
from kerasmem.memory.plan.search import Search
from kerasmem.memory.plan.steps import RecordedStep, Strategy, recorded
from kerasmem.records import Remedy
from kerasmem.records.memory_plan import (
    EIGHT_BITS,
    KEPT,
    RECOMPUTED,
    Piece,
    PlanOption,
)

_LEAST_OFFER = 0.01
"""Minimum saving of an offer, as a fraction of the peak."""


def plan_for(search: Search, strategy: Strategy) -> MemoryPlan:
    """Return the plan with a strategy."""
    step, figures = search.step_of(strategy.micro_batches), search.figures(strategy)
    own = search.request
    return MemoryPlan(
        model_name=main_part(step.request.model, step.path).name,
        batch_size=own.batch_size,
        micro_batches=strategy.micro_batches,
        pieces=tuple(_pieces(step, strategy)),
        peak_bytes=figures.peak_bytes,
        plain_peak_bytes=search.plain.peak_bytes,
        extra_time=figures.extra_time,
        path=step.path,
        ranges=strategy.pieces,
        inputs=() if own_graph(own.model) else own.inputs,
    )


def _pieces(step: RecordedStep, strategy: Strategy) -> Iterator[Piece]:
    if strategy.in_8_bits:
        yield from _packed_pieces(step, strategy)
        return
    at = 0
    for start, end in (*strategy.pieces, (len(step.calls),) * 2):
        if at < start:
            kept_bytes = sum(call.kept_bytes for call in step.calls[at:start])
            yield Piece(tuple(step.names[at:start]), KEPT, kept_bytes)
        if start < end:
            calls = step.calls[start:end]
            inside = sum(call.kept_bytes for call in calls)
            kept_bytes = sum(
                call.output_bytes for call in calls if call.last_use >= end
            )
            yield Piece(tuple(step.names[start:end]), RECOMPUTED, kept_bytes, inside)
        at = end


def _packed_pieces(step: RecordedStep, strategy: Strategy) -> Iterator[Piece]:
    calls, ops = step.record.trace.calls, step.program(strategy).ops
    read = {x.root for op in ops if op.phase == "backward" for x in op.reads}
    saved_bytes: Counter[int | None] = Counter()
    for op in ops:
        if op.phase == "forward":
            saved_bytes[op.call] += sum(y.nbytes for y in op.writes if y.root in read)
    segment_of = {call: segment for segment in step.packed for call in segment.calls}
    own = [n for n, call in enumerate(calls) if call.inputs or call.variables]
    for segment, numbers in itertools.groupby(own, segment_of.get):
        group = list(numbers)
        names = tuple(calls[number].operation.name for number in group)
        way = KEPT if segment is None else EIGHT_BITS
        yield Piece(names, way, sum(saved_bytes[number] for number in group))


def option_for(search: Search, strategy: Strategy) -> PlanOption:
    """Return a strategy as another option of a plan."""
    plan = plan_for(search, strategy)
    return PlanOption(plan.how, plan.peak_bytes, plan.extra_time)


def offers_for(search: Search, strategy: Strategy) -> Iterator[Remedy]:
    """Yield settings that change the training and need less memory."""
    request, figures = search.request, search.figures(strategy)
    least = _LEAST_OFFER * figures.peak_bytes

    def remedy(name: str, how: str, saves_bytes: int) -> Iterator[Remedy]:
        if saves_bytes > least:
            peak_bytes = figures.peak_bytes - saves_bytes
            yield Remedy(
                name=name, how=how, saves_bytes=saves_bytes, peak_bytes=peak_bytes
            )

    now = persistent_bytes(request)
    for name, (make, how) in OPTIMIZERS.items():
        yield from remedy(
            name, how, now - persistent_bytes(replace(request, optimizer=make()))
        )
    if may_be_half(request.model, request.device):
        step = search.step_of(strategy.micro_batches)
        half = replace(step.request, dtype_policy=HALF)
        lower = recorded(half, step.path, step.graph).simulate(strategy).peak_bytes
        full = step.simulate(strategy).peak_bytes
        yield from remedy(*MIXED, full - lower)
