"""The estimate of a compiled step, in this process and on its backend."""

from collections import defaultdict
from collections.abc import Sequence

import keras

from kerasmem.backends.trace import tracer
from kerasmem.backends.trace_hlo import Flat, Value, read_flat
from kerasmem.graph.values import nbytes
from kerasmem.memory.estimate.outcome import answer
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import as_tensors, symbolic_batch
from kerasmem.memory.estimate.xla.program import written
from kerasmem.memory.estimate.xla.scratch import LARGEST_TRIAL, trial
from kerasmem.memory.program import Op, Program, Tensor, allocator, live, peak_of, plan
from kerasmem.memory.program.parts import parts_of
from kerasmem.memory.timeline import Watched, watched
from kerasmem.memory.timeline.names import Names
from kerasmem.records import EstimatePart, MemoryEstimate

# Between these multiples of the estimate lay what was measured on a GPU.
_COMPILED, _NOT_COMPILED = (0.8, 1.3), (0.5, 1.75)


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate of a step that XLA compiles."""
    model, followed = watched(request.model)
    batch = symbolic_batch(request)
    hlo = tracer("trace_hlo")
    if request.device == "cpu" and request.jit_compile:
        planned = hlo.compiled_bytes(followed, batch, training=request.training)
        return _exact(request, model, planned, _batch_bytes(batch))
    module = hlo.step_module(followed, batch, training=request.training)
    program = read_flat(module)
    return _imitated(request, model, program)


def _exact(
    request: Request, model: Watched, planned: int, batch_bytes: int
) -> MemoryEstimate:
    """Return the estimate from XLA's own plan for this machine."""
    sums = _beside(model, batch_bytes)
    sums["temporary", None] += planned
    return _estimate(request, model, sums, planned, trial_bytes=0)


def _imitated(request: Request, model: Watched, flat: Flat) -> MemoryEstimate:
    """Return the estimate from the program before XLA compiles it for a GPU."""
    places = _Places(model, request.backend)
    program = written(flat, places.place, fused=request.jit_compile)
    found = peak_of(plan(program, in_place=False).events, rounding=1)
    sums = _beside(model, _batch_in(flat, model))
    for part in parts_of((), found, set(), {}):
        sums[part.category, part.layer] += part.nbytes
    trials = (trial(flat, number) for number in range(len(flat.values)))
    largest = min(max(trials, default=0), LARGEST_TRIAL)
    results = 0 if request.training else _result_bytes(flat)
    sums["temporary", None] += results
    planned = found.nbytes + results
    return _estimate(request, model, sums, planned, trial_bytes=largest)


class _Places:
    """Says of a value which layer it belongs to and what it is for."""

    def __init__(self, model: Watched, backend: str) -> None:
        self._names = Names(model, "tensorflow" if backend == "tensorflow" else "xla")
        self._trained = {v.nbytes for v in model.variables if v.is_trained}

    def place(self, value: Value) -> tuple[str, str | None]:
        """Return category and layer."""
        origin = self._names.origin(value.name)
        if origin.phase == "forward":
            return "activation", origin.layer
        is_gradient = origin.phase == "backward" and value.nbytes in self._trained
        return "gradient" if is_gradient else "temporary", origin.layer


def _beside(model: Watched, batch_bytes: int) -> dict[tuple[str, str | None], int]:
    sums: dict[tuple[str, str | None], int] = defaultdict(int)
    for variable in model.variables:
        sums[variable.category, variable.layer] += variable.nbytes
    sums["input", None] += batch_bytes
    return sums


def _batch_in(flat: Flat, model: Watched) -> int:
    """Return the bytes of the parameters beyond the variables: the batch."""
    given = sum(v.nbytes for v in flat.values if v.opcode == "parameter")
    return max(given - sum(v.nbytes for v in model.variables), 0)


def _batch_bytes(batch: Sequence) -> int:
    return sum(nbytes(tensor) for tensor in keras.tree.flatten(batch))


def _result_bytes(flat: Flat) -> int:
    return sum(flat.values[number].nbytes for number in flat.results)


def _in_pool(model: Watched, planned: int, batch_bytes: int) -> int:
    """Return the peak when all temporary memory is one block of a BFC pool."""
    batch, block = (Tensor((nbytes,), 1) for nbytes in (batch_bytes, planned))
    step = Program(
        ops=(
            Op("input", None, "input", (), (batch,)),
            Op("step", None, "forward", (), (block,)),
        ),
        kept=(batch, *(variables := as_tensors(model))),
        present=variables,
    )
    return live([step], allocator("bfc"), in_place=False).peaks[0].nbytes


def _estimate(
    request: Request,
    model: Watched,
    sums: dict[tuple[str, str | None], int],
    planned: int,
    trial_bytes: int,
) -> MemoryEstimate:
    persistent = sum(sums.values()) - planned
    in_use = _in_pool(model, planned, sums["input", None])
    first = max(in_use, persistent + trial_bytes)
    # JAX cannot set its peak back, so what it tells later is that of the first step.
    peak = first if request.backend == "jax" else in_use
    low, high = _COMPILED if request.jit_compile else _NOT_COMPILED
    sums["workspace", None] += max(peak - in_use, 0)
    sums["rounding", None] += in_use - persistent - planned
    return answer(
        request,
        "traced",
        (EstimatePart(*place, size) for place, size in sums.items()),
        (round(low * peak), peak, round(high * peak)),
        (None, first, None),
    )
