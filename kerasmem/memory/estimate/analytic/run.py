"""The analytic method: a model's graph, written out as operations and allocated."""

import warnings
from dataclasses import dataclass, replace

from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.memory.estimate.analytic.doubt import (
    calibrated_width,
    doubt_of,
    first_interval,
)
from kerasmem.memory.estimate.analytic.framework import Framework, framework
from kerasmem.memory.estimate.analytic.step import (
    record,
    traced_calls,
    with_gradients_before,
)
from kerasmem.memory.estimate.outcome import answer
from kerasmem.memory.estimate.persistent import persistent_parts
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import (
    Op,
    Peak,
    Program,
    Tensor,
    allocator,
    live,
    peak_of,
    plan,
    with_trials,
)
from kerasmem.memory.program.parts import kept_for_backward, parts_of
from kerasmem.records import EstimatePart, MemoryEstimate


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate of a model with a graph; nothing is run.

    Raises:
        ModelError: if the model has no graph.
    """
    how = framework(request)
    traced = traced_calls(request, how)
    if traced is None:
        raise ModelError(
            "The analytic method reads a model's graph. Expected: a Sequential or "
            f"Functional model. Received: model={request.model.name!r}, of class "
            f"{type(request.model).__name__}, which has none. Next: pass "
            "method='traced'."
        )
    stored = persistent_parts(request)
    first = record(request, traced, how)
    if first.unknown:
        warnings.warn(
            "Layers in no table of the analytic method count as if they kept their "
            f"inputs and outputs and nothing else: {', '.join(sorted(first.unknown))}. "
            "The interval is wider; method='traced' sees what they do.",
            KerasMemWarning,
            stacklevel=3,
        )
    later = with_gradients_before(first)
    blocks = [part.nbytes for part in stored]
    blocks.append(how.held(training=request.training))
    found = _find(how, blocks, first, later)
    return _result(request, how, stored, later, found)


@dataclass(frozen=True)
class _Found:
    """Bytes of the first and of later steps; what is kept for the backward pass."""

    first_bytes: int
    peak: Peak
    peak_bytes: int
    pool_bytes: int
    kept: set[Tensor]


def _find(how: Framework, stored: list[int], first: Program, later: Program) -> _Found:
    tried = first if how.one_block else with_trials(first)
    plans = [plan(step, in_place=how.in_place) for step in (tried, later)]
    peak_first, peak = (peak_of(one.events, how.rounding) for one in plans)
    known = sum(stored)
    peak_bytes, first_bytes = (
        known + round(found.nbytes * (1 + how.waste)) for found in (peak, peak_first)
    )
    if how.one_block:
        # Algorithms are tried out while compiling, before anything of a step is there.
        trials = [op.trial + _operands(op) for op in first.ops if op.trial]
        first_bytes = max(first_bytes, known + max(trials, default=0))
        pool = peak_bytes
    else:
        present = tuple(Tensor((nbytes,), 1) for nbytes in stored)
        steps = [replace(step, present=present) for step in (tried, later)]
        pool = live(steps, allocator(how.allocator), in_place=how.in_place).pool_bytes
    kept = kept_for_backward(later.ops, plans[-1].owner)
    return _Found(first_bytes, peak, peak_bytes, pool, kept)


def _operands(op: Op) -> int:
    return sum(x.nbytes for x in (*op.reads, *op.writes))


def _result(
    request: Request,
    how: Framework,
    stored: list[EstimatePart],
    step: Program,
    found: _Found,
) -> MemoryEstimate:
    held = how.held(training=request.training)
    asked = sum(part.nbytes for part in stored) + held
    asked += sum(size for _, size in found.peak.uses)
    extra = {
        "workspace": held,
        "rounding": found.peak_bytes - asked,
        "pool": max(0, found.pool_bytes - found.peak_bytes),
    }
    doubt = doubt_of(how, step, stored, found.peak_bytes)
    low, high = doubt.around(found.peak_bytes, calibrated_width(request))
    widest = doubt.around(found.peak_bytes)
    tries = any(op.trial for op in step.ops)
    first = first_interval(*widest, found.peak_bytes, found.first_bytes, tries=tries)
    if not request.training:
        # Every batch of a new length is a first one.
        high = first[1]
    return answer(
        request,
        "analytic",
        parts_of(stored, found.peak, found.kept, extra),
        (low, found.peak_bytes, high),
        (first[0], found.first_bytes, first[1]),
    )
