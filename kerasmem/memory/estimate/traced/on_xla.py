"""What a compiled step needs, from what XLA is given to compile."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import keras

from kerasmem.backends.profile import Followed
from kerasmem.backends.trace import tracer
from kerasmem.backends.xla.flat import Flat, Value, read_flat
from kerasmem.graph.values import nbytes
from kerasmem.memory import program as pg
from kerasmem.memory.estimate.inputs import as_tensors, symbolic_batch
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.scratch import LARGEST_TRIAL
from kerasmem.memory.estimate.traced.xla_kernels import Stored, stored, trial, workspace
from kerasmem.memory.program import Op, Program, Tensor
from kerasmem.memory.timeline import Watched, watched
from kerasmem.memory.timeline.names import Names
from kerasmem.records import EstimatePart, MemoryEstimate

# Between these multiples of the estimate lay what was measured on a GPU.
Sums = dict[tuple[str, str | None], int]
_COMPILED, _NOT_COMPILED = (0.8, 1.3), (0.5, 1.75)


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate of a step that XLA compiles.

    For this machine's CPU it is XLA's own plan; for a GPU from the program before XLA
    compiles it.
    """
    model, followed = watched(request.model)
    sums = model.bytes_by_place()
    is_exact = request.device == "cpu" and request.jit_compile
    find = _planned_by_xla if is_exact else _imitated
    planned, trial_bytes = find(request, model, followed, sums)
    persistent = sum(sums.values()) - planned
    in_use = _in_pool(model, planned, sums["input", None])
    first = max(in_use, persistent + trial_bytes)
    # JAX cannot set its peak back, so what it tells later is that of the first step.
    peak = first if request.backend == "jax" else in_use
    low, high = _COMPILED if request.jit_compile else _NOT_COMPILED
    sums["workspace", None] += max(peak - in_use, 0)
    sums["rounding", None] += in_use - persistent - planned
    parts = (EstimatePart(*place, size) for place, size in sums.items())
    ends = round(low * peak), peak, round(high * peak)
    return request.answer("traced", parts, ends, (None, first, None))


def _planned_by_xla(
    request: Request, _model: Watched, followed: Followed, sums: Sums
) -> tuple[int, int]:
    """Return the temporary bytes and those that are tried; add to `sums` what fills."""
    batch, tell = symbolic_batch(request), tracer().compiled_bytes
    planned = tell(followed, batch, training=request.training)
    sums["input", None] += sum(map(nbytes, keras.tree.flatten(batch)))
    sums["temporary", None] += planned
    return planned, 0


def _imitated(
    request: Request, model: Watched, followed: Followed, sums: Sums
) -> tuple[int, int]:
    """Return the same by the program before XLA compiles it."""
    batch, tell = symbolic_batch(request), tracer().step_module
    flat = read_flat(tell(followed, batch, training=request.training))
    names = Names(model, "tensorflow" if request.backend == "tensorflow" else "xla")
    trained = model.trained_sizes()

    def place(value: Value) -> tuple[str, str | None]:
        origin = names.origin(value.name)
        if origin.phase == "forward":
            return "activation", origin.layer
        is_gradient = origin.phase == "backward" and value.nbytes in trained
        return "gradient" if is_gradient else "temporary", origin.layer

    step = written(flat, place, fused=request.jit_compile)
    found = pg.peak_of(pg.Plan(step, in_place=False).events, rounding=1)
    # The parameters beyond the variables are the batch.
    given = sum(v.nbytes for v in flat.values if v.opcode == "parameter")
    sums["input", None] += max(given - sum(v.nbytes for v in model.variables), 0)
    for part in pg.parts_of((), found, set(), {}):
        sums[part.category, part.layer] += part.nbytes
    results = [] if request.training else flat.results
    made = sum(flat.values[number].nbytes for number in results)
    sums["temporary", None] += made
    largest = max((trial(flat, n) for n in range(len(flat.values))), default=0)
    return found.nbytes + made, min(largest, LARGEST_TRIAL)


def _in_pool(model: Watched, planned: int, batch_bytes: int) -> int:
    """Return the peak when all temporary memory is one block of a BFC pool."""
    batch, block = (Tensor((nbytes,), 1) for nbytes in (batch_bytes, planned))
    variables = as_tensors(model)
    begin = Op("input", None, "input", (), (batch,))
    step = Op("step", None, "forward", (), (block,))
    program = Program((begin, step), (batch, *variables), variables)
    (peak,), _ = pg.live([pg.Plan(program, in_place=False)], pg.allocator("bfc"))
    return peak.nbytes


def written(
    flat: Flat, place: Callable = lambda _: ("value", None), *, fused: bool = True
) -> Program:
    """Return the program of a step on a GPU, without its variables and its batch.

    Weights are updated as soon as their gradient is there and nobody needs the old
    ones: XLA orders a program so that it needs little memory.

    Args:
        flat: the operations before XLA merges them.
        place: returns category and layer of a stored value.
        fused: False if the step runs operation by operation: then all is stored, and
            the updated weights stand beside the old ones to the end.
    """
    what = stored(flat, fused=fused)
    tensors = {
        number: Tensor((value.nbytes,), 1, layer, kind=kind)
        for number, value in enumerate(flat.values)
        if what.is_stored[number]
        for kind, layer in [place(value)]
    }
    held = _held(flat, what) if fused else {}
    ops: list[Op] = []
    for number, value in enumerate(flat.values):
        if number in tensors:
            y = tensors[number]
            sources = {s: None for o in value.operands for s in what.sources[o]}
            read = [tensors[s] for s in sources if s in tensors]
            space = workspace(flat, number)
            op = Op(value.opcode, y.layer, "forward", tuple(read), (y,), (), space)
            ops.append(op)
        if number in held:
            read = tuple(tensors[s] for s in held[number] if s in tensors)
            ops.append(Op("update", None, "forward", read, ()))
    results = {s for result in flat.results for s in what.sources[result]}
    kept = () if fused else tuple(tensors[s] for s in sorted(results & tensors.keys()))
    return Program(tuple(ops), kept)


def _held(flat: Flat, what: Stored) -> dict[int, list[int]]:
    """Return what the results are computed from, by the number at which they can be."""
    last = [-1] * len(flat.values)
    for number, value in enumerate(flat.values):
        if what.is_stored[number]:
            for operand in value.operands:
                for source in what.sources[operand]:
                    last[source] = max(last[source], number)
    held: dict[int, list[int]] = defaultdict(list)
    for result in flat.results:
        sources = what.sources[result]
        when = max((_ready(flat, last, source) for source in sources), default=0)
        for source in sources:
            last[source] = max(last[source], when)
        held[max(when, 0)] += sources
    return held


def _ready(flat: Flat, last: Sequence[int], source: int) -> int:
    """Return when a result may be computed from a source, or written over it."""
    return last[source] if flat.values[source].opcode == "parameter" else source
