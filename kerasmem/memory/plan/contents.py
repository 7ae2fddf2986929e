"""The contents of a memory plan: pieces, other options and offers."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from kerasmem.graph.layers import own_graph
from kerasmem.memory.estimate.variables import persistent_bytes
from kerasmem.memory.plan.memory_plan import MemoryPlan
from kerasmem.memory.plan.offers import HALF, MIXED, OPTIMIZERS, may_be_half
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
        model_name=step.part.name,
        batch_size=own.batch_size,
        micro_batches=strategy.micro_batches,
        pieces=tuple(_pieces(step, strategy)),
        peak_bytes=figures.peak_bytes,
        plain_peak_bytes=search.plain.peak_bytes,
        extra_time=figures.extra_time,
        path=step.path,
        ranges=strategy.pieces,
        ranges_in_8_bits=strategy.in_8_bits,
        inputs=() if own_graph(own.model) else own.inputs,
    )


def _pieces(step: RecordedStep, strategy: Strategy) -> Iterator[Piece]:
    ops = step.program(strategy).ops
    read = {x.root for op in ops if op.phase == "backward" for x in op.reads}
    saved_bytes = [
        sum(y.nbytes for op in own for y in op.writes if y.root in read)
        for own in step.by_call(ops, "forward")
    ]
    ways: list[tuple[str, int]] = [(KEPT, 0)] * len(step.calls)
    for way, ranges in (
        (EIGHT_BITS, strategy.in_8_bits),
        (RECOMPUTED, strategy.pieces),
    ):
        for start, end in ranges:
            ways[start:end] = [(way, start)] * (end - start)
    for (way, _), numbers in itertools.groupby(range(len(ways)), ways.__getitem__):
        group = list(numbers)
        inside = sum(step.calls[n].kept_bytes for n in group)
        yield Piece(
            tuple(step.names[n] for n in group),
            way,
            sum(saved_bytes[n] for n in group),
            inside if way == RECOMPUTED else 0,
        )


def option_for(search: Search, strategy: Strategy) -> PlanOption:
    """Return a strategy as another option of a plan."""
    plan = plan_for(search, strategy)
    return PlanOption(plan.how, plan.peak_bytes, plan.extra_time)


def offers_for(search: Search, strategy: Strategy, plan_bytes: int) -> Iterator[Remedy]:
    """Yield settings that change the training and need less than the plan's peak."""
    request, least = search.request, _LEAST_OFFER * plan_bytes

    def remedy(name: str, how: str, saves_bytes: int) -> Iterator[Remedy]:
        if saves_bytes > least:
            peak_bytes = plan_bytes - saves_bytes
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
