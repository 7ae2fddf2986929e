"""The analytic method: a model's graph, written out as operations and allocated."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.graph.activation_policy import policy_of
from kerasmem.memory.estimate.analytic.framework import Framework, framework
from kerasmem.memory.estimate.analytic.generation import (
    of_generation,
    record_generation,
)
from kerasmem.memory.estimate.analytic.layers.recurrent import CELL_LOOP
from kerasmem.memory.estimate.analytic.record import record
from kerasmem.memory.estimate.pool import block_bytes
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.memory.program import (
    AllocationPlan,
    Program,
    ProgramTensor,
    live,
    parts_of,
    peak_of,
    unlimited_bfc,
)
from kerasmem.memory.program import (
    Op as Op,
)
from kerasmem.records import MemoryEstimate
from kerasmem.units import GIB

_WIDTH = {"tensorflow": 0.52, "jax": 1.14, "torch": 0.084}
"""The split-conformal factor of the 70 cases of an H200: so many times as wide the
interval of a later step holds nine of ten (Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005). `tests/benchmarks/bench_estimate.py` finds it, and
tells how many cases of models left out it holds."""
_UNKNOWN_LAYER = 0.4
"""Added upward where a layer is in no table: what it keeps inside is not seen."""
_UNKNOWN_INSIDE = 10
"""Multiple of the inputs, weights and outputs of such layers, added upward as well."""
_CELL_LOOP = (0.8, 0.6)
"""Loops over other cells: it varies how many time steps run ahead of one another."""
_RECURRENCE = (0.3, 0.5)
"""Where cuDNN runs a recurrent layer: it does not say what it reserves."""
_WHOLE_CHUNKS = 0.1
"""Of the variables: TensorFlow's allocator may give their chunks whole as well."""
_WHOLE_BLOCK = 0.97
"""Of the largest tensor: TensorFlow's allocator gives a block whole that is less than
twice as large. On a CPU it took 26 MiB more for one of 27 MiB in some runs."""
_WIDEST = 1.6
"""Times the lower end: a whole block widens an interval no further."""
_UPDATE_COPIES = 2
"""Copies of the largest variable that XLA makes where it cannot update in place."""


def estimate(request: Request) -> MemoryEstimate:
    """Return the estimate of a model with a graph; nothing is run.

    Raises:
        ModelError: if the model has no graph.
    """
    how = framework(request.backend, request.device, compiled=request.jit_compile)
    write = record
    if request.generate is not None:
        how, write = of_generation(how), record_generation
    step_record = write(request, how)
    if step_record is None:
        raise ModelError(
            "The analytic method reads a model's graph. Expected: a Sequential or "
            f"Functional model. Received: model={request.model.name!r}, of class "
            f"{type(request.model).__name__}, which has none. Next: pass "
            "method='traced'."
        )
    # Before rematerialization, which writes such a layer down twice.
    ends = sum(
        x.nbytes
        for op in step_record.step.ops
        if op.name == "unknown"
        for x in (*op.reads, *op.writes)
    )
    policy = policy_of(request.model) if request.training else None
    segments = step_record.segments_of(policy.segments) if policy else ()
    first, later = step_record.steps(segments)
    if first.unknown:
        warnings.warn(
            "Layers in no table of the analytic method count as if they kept their "
            f"inputs and outputs and nothing else: {', '.join(sorted(first.unknown))}. "
            "The interval is much wider, and they may need more than its upper end. "
            "Next: pass method='traced' or 'measured'.",
            KerasMemWarning,
            stacklevel=3,
        )
    loops = {op.layer or "" for op in first.ops if op.name == CELL_LOOP}
    if loops:
        warnings.warn(
            f"The interval is wider because of loops over time: "
            f"{', '.join(sorted(loops))}. The number of time steps that a backend runs "
            "ahead varies. Next: pass method='measured'.",
            KerasMemWarning,
            stacklevel=3,
        )
    parts = persistent_parts(request)
    sizes = [part.nbytes for part in parts]
    libraries = how.held_scratch * (1 + request.training)
    persistent_bytes = sum(sizes) + libraries
    present = tuple(ProgramTensor((nbytes,), 1) for nbytes in (*sizes, libraries))
    plans = [
        AllocationPlan(
            replace(step, present=present), in_place=how.in_place, is_first=is_first
        )
        for step, is_first in ((first, not how.one_block), (later, False))
    ]
    peaks = [peak_of(plan.events, how.rounding) for plan in plans]
    first_bytes, peak = (
        persistent_bytes + round(x.nbytes * (1 + how.waste)) for x in peaks
    )
    requested_bytes = peak
    below, above = _doubt(how, later, sizes, requested_bytes, request.device)
    as_allocated = _as_allocated(
        request, how, later, requested_bytes - persistent_bytes
    )
    first_bytes, peak = (
        max(first_bytes, requested_bytes + as_allocated(0)),
        requested_bytes + as_allocated(0),
    )
    pool = peak
    trials = [
        op.trial + sum(x.nbytes for x in (*op.reads, *op.writes))
        for op in first.ops
        if op.trial
    ]
    if how.one_block:
        # Algorithms are tried out while compiling, before anything of a step is there.
        first_bytes = max(first_bytes, persistent_bytes + max(trials, default=0))
    else:
        _, pool = live(plans, how.allocator())
    # Where a model is split, so may be all that it makes: XLA decides.
    shares = request.sharding.devices // request.sharding.replicas
    below = (requested_bytes - sum(sizes)) * (1 - 1 / shares) + below / shares
    unseen = _UNKNOWN_LAYER * (requested_bytes - sum(sizes)) + _UNKNOWN_INSIDE * ends
    unseen = unseen if later.unknown else 0.0
    of_gpu = request.training and request.device == "gpu"
    width = _WIDTH[request.backend] if of_gpu else 1.0
    high = requested_bytes + as_allocated(round(width * above + unseen))
    first_low = min(requested_bytes - round(below), first_bytes)
    first_high = max(requested_bytes + as_allocated(round(above + unseen)), first_bytes)
    if trials:
        # Another algorithm may take a GiB more, or as much again as the largest known.
        first_high += max(GIB, first_bytes - peak)
    return request.answer(
        "analytic",
        parts_of(
            plans[1],
            peaks[1],
            parts,
            workspace=libraries,
            rounding=peak - persistent_bytes - peaks[1].requested_bytes,
            pool=max(0, pool - peak),
        ),
        # Without training every batch of a new length is a first one.
        (
            requested_bytes - round(width * below),
            peak,
            high if request.training else first_high,
        ),
        (first_low, first_bytes, first_high),
    )


def _as_allocated(
    request: Request, how: Framework, step: Program, moving: int
) -> Callable[[int], int]:
    """Return what tells how many bytes are given beyond what is expected, if more is.

    On a GPU what XLA asks for at once is a block of its own, which may come whole.

    Args:
        request: the question.
        how: how the backend runs a step.
        step: the operations of the step.
        moving: bytes that are expected to come and go, batch and results among them.
    """
    if not how.one_block or request.device != "gpu":
        return lambda more: more
    apart = ("input", "value") if request.step == "predict" else ("input",)
    block = moving - sum(x.nbytes for x in step.results if x.kind in apart)
    return lambda more: block_bytes(block + more) - block


def _doubt(
    how: Framework, step: Program, stored: Sequence[int], peak: int, device: str
) -> tuple[float, float]:
    """Return how far a peak may be off, downward and upward, in bytes.

    Args:
        how: how the backend runs a step.
        step: the operations of the step.
        stored: bytes of the variables.
        peak: the estimated peak.
        device: `"cpu"` or `"gpu"`.
    """
    down, up = how.doubt
    if how.fused_recurrence and any(op.name == "recurrence" for op in step.ops):
        down, up = max(down, _RECURRENCE[0]), max(up, _RECURRENCE[1])
    if any(op.name == CELL_LOOP for op in step.ops):
        down, up = max(down, _CELL_LOOP[0]), max(up, _CELL_LOOP[1])
    more = _WHOLE_CHUNKS * sum(stored) if how.allocator is unlimited_bfc else 0
    if how.one_block:
        more += _UPDATE_COPIES * max(stored, default=0)
    moving = peak - sum(stored)
    above = up * moving + more
    if device == "cpu" and how.allocator is unlimited_bfc and not how.one_block:
        largest = max((x.nbytes for op in step.ops for x in op.writes), default=0)
        room = _WIDEST * (peak - down * moving) - peak
        above = max(above, min(_WHOLE_BLOCK * largest, room))
    return down * moving, above
