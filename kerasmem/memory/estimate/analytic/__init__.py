"""Method "analytic": converts the graph of a model to operations and allocations."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.activation_policy import policy_of
from kerasmem.memory.estimate.analytic.framework import Framework, framework
from kerasmem.memory.estimate.analytic.layers.common import FLOAT
from kerasmem.memory.estimate.analytic.layers.recurrent import CELL_LOOP
from kerasmem.memory.estimate.analytic.record import Record, record
from kerasmem.memory.estimate.generation import KeyValueCache, cache_of
from kerasmem.memory.estimate.pool import block_bytes
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.memory.program import (
    AllocationPlan,
    Op,
    Program,
    ProgramTensor,
    parts_of,
    peak_of,
)
from kerasmem.records import MemoryEstimate
from kerasmem.units import GIB

_WIDTH = {"tensorflow": 0.52, "jax": 1.14, "torch": 0.084}
"""Split-conformal factors from the 70 cases of an H200. With this factor, the interval
of a later step covers 90 % of the cases. See Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005. `tests/benchmarks/bench_estimate.py` computes the
factors and their coverage of held-out models."""
_UNKNOWN_LAYER = 0.4
"""Fraction added to the upper bound for layers without a handler."""
_UNKNOWN_INSIDE = 10
"""Multiple of the inputs, weights and outputs of such layers, added as well."""
_CELL_LOOP = (0.8, 0.6)
"""Relative error of loops over other cells: the number of concurrent steps varies."""
_RECURRENCE = (0.3, 0.5)
"""Relative error of recurrent layers in cuDNN, whose reserved memory is unknown."""
_WHOLE_CHUNKS = 0.1
"""Fraction of the variables: TensorFlow's allocator may not split their chunks."""
_WHOLE_BLOCK = 0.97
"""Fraction of the largest tensor: TensorFlow's allocator may return a block of up to
twice the size. On a CPU, a request of 27 MiB took 26 MiB more in some runs."""
_WIDEST = 1.6
"""Maximum upper bound relative to the lower bound after adding an unsplit block."""
_UPDATE_COPIES = 2
"""Copies of the largest trained variable that XLA creates if it cannot update in
place."""
_OPEN = frozenset({"convolution", "loop", CELL_LOOP, "chunks", "unknown"})
"""Operations whose memory XLA or a library chooses during compilation."""
_PLANNED = 0.2
"""Maximum relative error, after the factor of the backend, of a step that XLA compiles
for a GPU without `_OPEN` operations and rematerialization. Errors against plans of
XLA were at most 13 %."""


def estimate(request: Request) -> MemoryEstimate:
    """Estimate the memory of a model with a graph, without running anything.

    Raises:
        ModelError: If the model has no graph.
    """
    how = framework(request.backend, request.device, compiled=request.jit_compile)
    write = record
    if request.generate is not None:
        how, write = of_generation(how), record_generation
    step_record = write(request, how)
    if step_record is None:
        raise ModelError(
            "The analytic method needs a model with a graph. Expected: a Sequential or "
            f"Functional model. Received: model={request.model.name!r}, of class "
            f"{type(request.model).__name__}, without a graph. Next: pass "
            "method='traced'."
        )
    # Counted before rematerialization, which records such a layer twice.
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
            "The analytic method assumes that unsupported layers save only their "
            f"inputs and outputs: {', '.join(sorted(first.unknown))}. "
            "The interval is much wider, and the peak may exceed its upper bound. "
            "Next: pass method='traced' or 'measured' (--method traced).",
            KerasMemWarning,
            stacklevel=3,
        )
    loops = {op.layer or "" for op in first.ops if op.name == CELL_LOOP}
    if loops:
        warnings.warn(
            f"The interval is wider because of loops over time: "
            f"{', '.join(sorted(loops))}. The number of time steps that a backend runs "
            "ahead varies. Next: pass method='measured' (--method measured).",
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
    if request.device == "gpu" and policy is None:
        how = _without_algorithms(how, later, _WIDTH[request.backend])
    below, above = _doubt(how, later, sizes, requested_bytes, request.device)
    as_allocated = _as_allocated(
        request, how, later, requested_bytes - persistent_bytes
    )
    first_bytes, peak = (
        max(first_bytes, requested_bytes + as_allocated(0)),
        requested_bytes + as_allocated(0),
    )
    trials = [
        op.trial + sum(x.nbytes for x in (*op.reads, *op.writes))
        for op in first.ops
        if op.trial
    ]
    if how.one_block:
        # Autotuning happens during compilation, before the step allocates memory.
        first_bytes = max(first_bytes, persistent_bytes + max(trials, default=0))
    # XLA may shard the activations of a sharded model.
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
        # Another algorithm may need up to 1 GiB more, or double the known maximum.
        first_high += max(GIB, first_bytes - peak)
    return request.answer(
        "analytic",
        parts_of(
            plans[1],
            peaks[1],
            parts,
            workspace=libraries,
            rounding=peak - persistent_bytes - peaks[1].requested_bytes,
        ),
        # Without training, every batch with a new length is a first step.
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
    """Return a function from additional expected bytes to additional allocated bytes.

    On a GPU, XLA allocates one block per step, which may not be split. `moving` is the
    expected memory without variables.
    """
    if not how.one_block or request.device != "gpu":
        return lambda more: more
    apart = ("input", "value") if request.step == "predict" else ("input",)
    block = moving - sum(x.nbytes for x in step.results if x.kind in apart)
    return lambda more: block_bytes(block + more) - block


def _without_algorithms(how: Framework, step: Program, width: float) -> Framework:
    """Limit the doubt of a compiled step without operations in `_OPEN`."""
    if not how.one_block or any(op.name in _OPEN for op in step.ops):
        return how
    down, up = (min(doubt, _PLANNED / width) for doubt in how.doubt)
    return replace(how, doubt=(down, up))


def _doubt(
    how: Framework, step: Program, stored: Sequence[int], peak: int, device: str
) -> tuple[float, float]:
    """Return the downward and upward errors of a peak in bytes."""
    down, up = how.doubt
    if how.fused_recurrence and any(op.name == "recurrence" for op in step.ops):
        down, up = max(down, _RECURRENCE[0]), max(up, _RECURRENCE[1])
    if any(op.name == CELL_LOOP for op in step.ops):
        down, up = max(down, _CELL_LOOP[0]), max(up, _CELL_LOOP[1])
    more = _WHOLE_CHUNKS * sum(stored) if how.whole_chunks else 0
    if how.one_block:
        reads = {x.root for op in step.ops for x in op.reads}
        variables = (x for x in reads if x.kind == "parameter" and x.differentiable)
        more += _UPDATE_COPIES * max((x.nbytes for x in variables), default=0)
    moving = peak - sum(stored)
    above = up * moving + more
    if device == "cpu" and how.whole_chunks and not how.one_block:
        largest = max((x.nbytes for op in step.ops for x in op.writes), default=0)
        room = _WIDEST * (peak - down * moving) - peak
        above = max(above, min(_WHOLE_BLOCK * largest, room))
    return down * moving, above


_WRITTEN_OUT = (0.35, 1.1)
"""Relative error without a compiler, caused by Python's loop over layers."""


def of_generation(how: Framework) -> Framework:
    """Return the framework for generation: KerasHub calls layers and drops outputs."""
    doubt = how.doubt if how.one_block else _WRITTEN_OUT
    return replace(how, keeps_outputs=False, doubt=doubt)


def record_generation(request: Request, how: Framework) -> Record | None:
    """Record the generation of a batch. Returns `None` for a model without a graph.

    Raises:
        ConfigError: If TensorFlow does not compile the generation.
        ModelError: If the cache is not supported.
    """
    model = request.model
    if request.backend == "tensorflow" and not request.jit_compile:
        raise ConfigError(
            "The memory of generation on TensorFlow without compilation is unknown. "
            "Five measured models used up to four times the memory of the graph. "
            "Expected: jit_compile=True (--jit on), as on a GPU. Received: jit_compile="
            f"{request.jit_compile} on {request.device!r}. Next: pass jit_compile=True."
        )
    # A compiler removes the unused logits of prompts.
    source = model.backbone if how.one_block else model
    forward = record(replace(request, model=source), how)
    if forward is None:
        return None
    cache, step = cache_of(request), forward.step
    samples = request.of_a_replica().batch_size * cache.beams
    entries = samples * model.outputs[0].shape[-1]
    before, cache_tensor, after = _prefill(cache, how, step.results)
    rounds, last = _rounds(cache, how, cache_tensor, entries * FLOAT)
    ops = (*before, *step.ops, *after, *rounds)
    return replace(forward, step=replace(step, ops=ops, results=(*step.results, last)))


def _prefill(
    cache: KeyValueCache, how: Framework, results: Sequence[ProgramTensor]
) -> tuple[list[Op], ProgramTensor, list[Op]]:
    waiting = round(cache.nbytes * (cache.merged if how.one_block else 1))
    early = _cache(waiting - waiting // cache.layers)
    last, cache_tensor = _cache(waiting // cache.layers), _cache(cache.nbytes)
    # A compiler removes the empty cache, which has no reader.
    empty = _cache(0 if how.one_block else cache.nbytes)
    before = [_op("empty cache", (), empty), _op("keys and values", (), early)]
    after = [
        _op("keys and values", (*results, empty), last),
        _op("stack", (early, last, empty), cache_tensor),
    ]
    return before, cache_tensor, after


def _rounds(
    cache: KeyValueCache, how: Framework, stacked: ProgramTensor, probabilities: int
) -> tuple[list[Op], ProgramTensor]:
    size = cache.nbytes * cache.beams
    old, new = _cache(size), _cache(size)
    by_layer = _cache(0 if how.one_block else size)
    # A compiler reuses the first cache. Python's frames keep it until the end.
    first_cache = () if how.one_block else (stacked,)
    over = (stacked,) if cache.beams == 1 else ()
    ops = [
        _op("beams", (stacked,), old, over=over),
        _op("keys and values", (old,), by_layer),
        _op("stack", (by_layer, old, *first_cache), new),
        _op("probabilities", (new,), workspace=probabilities),
    ]
    if cache.beams > 1:
        beams = _cache(size)
        ops.append(_op("choose beams", (new,), beams))
        new = beams
    return ops, new


def _cache(nbytes: int) -> ProgramTensor:
    return ProgramTensor((nbytes,), 1, kind="cache")


def _op(
    name: str, reads: Sequence[ProgramTensor], *writes: ProgramTensor, **more: object
) -> Op:
    return Op(name, None, "forward", tuple(reads), writes, **more)  # pyright: ignore[reportArgumentType]
