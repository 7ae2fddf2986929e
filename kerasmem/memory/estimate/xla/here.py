"""The estimate of a compiled step, in this process and on its backend."""

from collections import defaultdict
from collections.abc import Sequence

import keras

from kerasmem.backends.trace import Operation, tracer
from kerasmem.backends.trace_hlo import Flat, Value, read_flat
from kerasmem.graph.values import nbytes
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import symbolic_batch
from kerasmem.memory.estimate.traced.executor import Step
from kerasmem.memory.estimate.traced.pool import live
from kerasmem.memory.estimate.xla.liveness import Temporary, temporary
from kerasmem.memory.estimate.xla.scratch import LARGEST_TRIAL, trial
from kerasmem.memory.timeline import Watched, watched
from kerasmem.memory.timeline.names import Names
from kerasmem.records import EstimatePart, MemoryEstimate

# Between these multiples of the estimate lay what was measured on a GPU.
_COMPILED, _NOT_COMPILED = (0.8, 1.3), (0.5, 1.75)


def estimate_here(request: Request, method: str = "xla") -> MemoryEstimate:
    """Return the estimate of a step that XLA compiles."""
    model, followed = watched(request.model)
    batch = symbolic_batch(request)
    hlo = tracer("trace_hlo")
    if request.device == "cpu" and method == "xla":
        planned = hlo.compiled_bytes(followed, batch, training=request.training)
        return _exact(request, model, planned, _batch_bytes(batch))
    module = hlo.step_module(followed, batch, training=request.training)
    program = read_flat(module)
    return _imitated(request, model, program, method)


def _exact(
    request: Request, model: Watched, planned: int, batch_bytes: int
) -> MemoryEstimate:
    """Return the estimate from XLA's own plan for this machine."""
    sums = _beside(model, batch_bytes)
    sums["temporary", None] += planned
    return _estimate(request, model, "xla", sums, planned, trial_bytes=0)


def _imitated(
    request: Request, model: Watched, program: Flat, method: str
) -> MemoryEstimate:
    """Return the estimate from the program before XLA compiles it for a GPU."""
    found = temporary(program, fused=request.jit_compile)
    sums = _beside(model, 0)
    for parameter in _batch(program, model):
        sums["input", None] += parameter
    _attribute(sums, program, found, _Places(model, request.backend))
    trials = (trial(program, number) for number in range(len(program.values)))
    largest = min(max(trials, default=0), LARGEST_TRIAL)
    results = 0 if request.training else _result_bytes(program)
    sums["temporary", None] += results
    planned = found.nbytes + results
    return _estimate(request, model, method, sums, planned, trial_bytes=largest)


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


def _attribute(
    sums: dict[tuple[str, str | None], int],
    program: Flat,
    found: Temporary,
    places: _Places,
) -> None:
    for number in found.values:
        value = program.values[number]
        sums[places.place(value)] += value.nbytes
    sums["workspace", None] += found.scratch_bytes


def _beside(model: Watched, batch_bytes: int) -> dict[tuple[str, str | None], int]:
    sums: dict[tuple[str, str | None], int] = defaultdict(int)
    for variable in model.variables:
        sums[variable.category, variable.layer] += variable.nbytes
    sums["input", None] += batch_bytes
    return sums


def _batch(program: Flat, model: Watched) -> Sequence[int]:
    """Return the bytes of the parameters beyond the variables: the batch."""
    given = [v.nbytes for v in program.values if v.opcode == "parameter"]
    return [max(sum(given) - sum(v.nbytes for v in model.variables), 0)]


def _batch_bytes(batch: Sequence) -> int:
    return sum(nbytes(tensor) for tensor in keras.tree.flatten(batch))


def _result_bytes(program: Flat) -> int:
    return sum(program.values[number].nbytes for number in program.results)


def _in_pool(model: Watched, planned: int, batch_bytes: int) -> int:
    """Return the peak when all temporary memory is one block of a BFC pool."""
    program = Operation("temporary", "XlaRun", (), (), ())
    steps = [Step(1, planned, program, comes=comes) for comes in (True, False)]
    sizes = [variable.nbytes for variable in model.variables]
    own = sum(v.category == "parameter" for v in model.variables)
    life = live(sizes, own, steps if planned else [], [batch_bytes], {})
    return max(event.in_use_bytes for event in life.last.traces[0].events)


def _estimate(
    request: Request,
    model: Watched,
    method: str,
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
    return MemoryEstimate(
        peak_bytes=peak,
        low_bytes=round(low * peak),
        high_bytes=round(high * peak),
        first_step_bytes=first,
        parts=tuple(
            EstimatePart(category, layer, size)
            for (category, layer), size in sums.items()
            if size
        ),
        batch_size=request.batch_size,
        backend=request.backend,
        jit_compile=request.jit_compile,
        device=request.device,
        training=request.training,
        method=method,
    )
