"""Memory of a compiled step, from the HLO program before compilation.

XLA recomputes a value at every use if that costs less than storing it. Values inside of
a fused kernel are never stored. This module imitates the choice from the bytes read and
written. XLA also considers the arithmetic.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras

from kerasmem.backends.profile import Followed
from kerasmem.backends.trace import tracer
from kerasmem.backends.xla.hlo import Flat, Value, read_flat
from kerasmem.graph.values import nbytes
from kerasmem.memory import program as pg
from kerasmem.memory.estimate import pool, scratch
from kerasmem.memory.estimate.inputs import as_tensors, symbolic_batch
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import Op, Program, ProgramTensor
from kerasmem.memory.timeline import Watched, watched
from kerasmem.memory.timeline.names import Names
from kerasmem.records import EstimatePart, MemoryEstimate

# Peaks measured on a GPU are between these multiples of the estimate.
Sums = dict[tuple[str, str | None], int]
_COMPILED, _NOT_COMPILED = (0.8, 1.3), (0.5, 1.75)


LIBRARY = frozenset(
    {
        "all-reduce", "cholesky", "conditional", "convolution", "custom-call", "dot",
        "fft", "rng", "rng-bit-generator", "scatter", "select-and-scatter", "sort",
        "triangular-solve", "while",
    }
)  # fmt: skip
"""Operations that read operands from memory and cannot be fused with them."""

_ALWAYS = LIBRARY | {"reduce", "reduce-window"}
_SAME = frozenset(
    {
        "bitcast", "copy", "get-tuple-element", "opt-barrier", "optimization-barrier",
        "reshape", "transpose",
    }
)  # fmt: skip
_FREE = frozenset({"broadcast", "constant", "iota"})
_SMALL = 1024
_TRIAL_COPIES = 3


class StoredBuffer(NamedTuple):
    """The stored values of a program.

    Args:
        is_stored: For each value, whether it owns memory.
        sources: For each value, the stored values and parameters from which it is
            computed. For a stored value, the value itself.
    """

    is_stored: Sequence[bool]
    sources: Sequence[frozenset[int]]


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Estimate the memory of a step that XLA compiles.

    On the CPU of this machine, XLA's own plan is used. For a GPU, the plan is imitated.
    """
    model, variables = watched(request.model)
    sums = model.bytes_by_place()
    is_exact = request.device == "cpu" and request.jit_compile
    find = _planned_by_xla if is_exact else _imitated
    temporary_bytes, trial_bytes = find(request, model, variables, sums)
    persistent = sum(sums.values()) - temporary_bytes
    batch_bytes = sums["input", None]
    if request.device == "gpu":
        variable_parts = [
            EstimatePart(v.category, v.layer, v.nbytes) for v in model.variables
        ]
        in_use = pool.in_use(
            request.backend, variable_parts, [batch_bytes], temporary_bytes
        ).total
    else:
        in_use = _in_pool(model, temporary_bytes, batch_bytes)
    first = max(in_use, persistent + trial_bytes)
    # JAX cannot reset its peak, so later readings include the first step.
    peak = first if request.backend == "jax" else in_use
    low, high = _COMPILED if request.jit_compile else _NOT_COMPILED
    sums["workspace", None] += max(peak - in_use, 0)
    sums["rounding", None] += in_use - persistent - temporary_bytes
    parts = (EstimatePart(*place, size) for place, size in sums.items())
    ends = round(low * peak), peak, round(high * peak)
    return request.answer("traced", parts, ends, (None, first, None))


def _planned_by_xla(
    request: Request, _model: Watched, followed: Followed, sums: Sums
) -> tuple[int, int]:
    batch, tell = symbolic_batch(request), tracer().compiled_bytes
    temporary_bytes = tell(followed, batch, step=request.step)
    sums["input", None] += sum(map(nbytes, keras.tree.flatten(batch)))
    sums["temporary", None] += temporary_bytes
    return temporary_bytes, 0


def _imitated(
    request: Request, model: Watched, followed: Followed, sums: Sums
) -> tuple[int, int]:
    batch, tell = symbolic_batch(request), tracer().step_module
    flat = read_flat(tell(followed, batch, step=request.step))
    names = Names(model, "tensorflow" if request.backend == "tensorflow" else "xla")

    def place(value: Value) -> tuple[str, str | None]:
        return names.place(value.name, value.nbytes)

    step = written(flat, place, fused=request.jit_compile)
    plan = pg.AllocationPlan(step, in_place=False)
    fullest = pg.peak_of(plan.events, rounding=1)
    # Parameters that are not variables are the batch.
    parameter_bytes = sum(v.nbytes for v in flat.values if v.opcode == "parameter")
    sums["input", None] += max(
        parameter_bytes - sum(v.nbytes for v in model.variables), 0
    )
    for part in pg.parts_of(plan, fullest):
        sums[part.category, part.layer] += part.nbytes
    results = [] if request.training else flat.results
    result_bytes = sum(flat.values[number].nbytes for number in results)
    sums["temporary", None] += result_bytes
    largest = max((trial(flat, n) for n in range(len(flat.values))), default=0)
    return fullest.nbytes + result_bytes, min(largest, scratch.LARGEST_TRIAL)


def _in_pool(model: Watched, planned: int, batch_bytes: int) -> int:
    batch, block = (ProgramTensor((nbytes,), 1) for nbytes in (batch_bytes, planned))
    variables = as_tensors(model)
    begin = Op("input", None, "input", (), (batch,))
    step = Op("step", None, "forward", (), (block,))
    program = Program((begin, step), (batch, *variables), variables)
    (peak,) = pg.live([pg.AllocationPlan(program, in_place=False)], pg.unlimited_bfc())
    return peak.nbytes


def written(
    flat: Flat, place: Callable = lambda _: ("value", None), *, fused: bool = True
) -> Program:
    """Return the program of a step on a GPU, without variables and batch.

    Weights are updated once their gradient exists and the old values are unused,
    because XLA orders operations to save memory. With `fused=False`, all values are
    stored, and old and updated weights exist together until the end.
    """
    what = stored(flat, fused=fused)
    tensors = {
        number: ProgramTensor((value.nbytes,), 1, layer, kind=kind)
        for number, value in enumerate(flat.values)
        if what.is_stored[number]
        for kind, layer in [place(value)]
    }
    sources_by_end = _held(flat, what) if fused else {}
    ops: list[Op] = []
    for number, value in enumerate(flat.values):
        if number in tensors:
            y = tensors[number]
            sources = {s: None for o in value.operands for s in what.sources[o]}
            read = [tensors[s] for s in sources if s in tensors]
            space = workspace(flat, number)
            op = Op(value.opcode, y.layer, "forward", tuple(read), (y,), (), space)
            ops.append(op)
        if number in sources_by_end:
            read = tuple(tensors[s] for s in sources_by_end[number] if s in tensors)
            ops.append(Op("update", None, "forward", read, ()))
    results = {s for result in flat.results for s in what.sources[result]}
    result_tensors = (
        () if fused else tuple(tensors[s] for s in sorted(results & tensors.keys()))
    )
    return Program(tuple(ops), result_tensors)


def _held(flat: Flat, what: StoredBuffer) -> dict[int, list[int]]:
    last = [-1] * len(flat.values)
    for number, value in enumerate(flat.values):
        if what.is_stored[number]:
            for operand in value.operands:
                for source in what.sources[operand]:
                    last[source] = max(last[source], number)
    sources_by_end: dict[int, list[int]] = defaultdict(list)
    for result in flat.results:
        sources = what.sources[result]
        # A result can be computed once its sources exist, and can overwrite a parameter
        # after its last reader.
        ready = (
            last[source] if flat.values[source].opcode == "parameter" else source
            for source in sources
        )
        when = max(ready, default=0)
        for source in sources:
            last[source] = max(last[source], when)
        sources_by_end[max(when, 0)] += sources
    return sources_by_end


def stored(program: Flat, *, fused: bool = True) -> StoredBuffer:
    """Return the values of `program` that are stored.

    With `fused=False`, each operation is a kernel.
    """
    users = _users(program)
    is_stored: list[bool] = []
    sources: list[frozenset[int]] = []
    for number, value in enumerate(program.values):
        own_sources = frozenset().union(*(sources[o] for o in value.operands))
        if fused:
            keep = _is_stored(program, users, number, own_sources)
        else:
            keep = value.opcode not in _SAME | {"constant", "parameter"}
        is_stored.append(keep)
        is_source = keep or value.opcode == "parameter"
        sources.append(frozenset([number]) if is_source else own_sources)
    return StoredBuffer(is_stored, sources)


def _is_stored(
    program: Flat, users: Sequence[set[int]], number: int, sources: frozenset[int]
) -> bool:
    value = program.values[number]
    if value.opcode in _ALWAYS:
        return True
    if value.opcode in _SAME | {"constant", "parameter"}:
        return False
    kernels = _kernels(program.values, users, number)
    if any(program.values[user].opcode in LIBRARY for user in kernels):
        return True
    if value.opcode in _FREE or value.nbytes <= _SMALL or len(kernels) < 2:
        return False
    read = sum(program.values[source].nbytes for source in sources)
    again = len(kernels) * read
    once = read + value.nbytes + len(kernels) * value.nbytes
    return again > once


def _kernels(
    values: Sequence[Value], users: Sequence[set[int]], number: int
) -> set[int]:
    kernels: set[int] = set()
    waiting = [number]
    while waiting:
        for user in users[waiting.pop()]:
            if values[user].opcode in _SAME:
                waiting.append(user)
            else:
                kernels.add(user)
    return kernels


def _users(program: Flat) -> list[set[int]]:
    users: list[set[int]] = [set() for _ in program.values]
    for number, value in enumerate(program.values):
        for operand in value.operands:
            users[operand].add(number)
    return users


def workspace(program: Flat, number: int) -> int:
    """Return the scratch bytes on a GPU of the kernel for value `number`."""
    value = program.values[number]
    operands = [program.values[operand] for operand in value.operands]
    if value.opcode == "convolution":
        return _convolution(value, operands[0], operands[1])
    if value.opcode == "select-and-scatter":
        # XLA stores the indices of each window's maximum, one array per axis, next to
        # the values. The scatter needs all index arrays together.
        windows = operands[1]
        return (2 * len(windows.shape) + 1) * math.prod(windows.shape) * 4
    return 0


def _convolution(value: Value, lhs: Value, rhs: Value) -> int:
    # XLA stores channels last, as cuDNN requires, so nothing is copied.
    many = lhs.shape[-1] > scratch.FEW_CHANNELS
    if value.itemsize == 2 or not many or _is_depthwise(lhs, rhs):
        return 0
    if value.shape[0] != lhs.shape[0]:  # The gradient of a kernel.
        return scratch.SPLITS * value.nbytes
    is_square = len(rhs.shape) == 4 and rhs.shape[:2] == (3, 3)
    if not is_square or lhs.shape[1:3] != value.shape[1:3]:
        return 0
    space, channels = lhs.shape[1:3], (lhs.shape[3], value.shape[3])
    return scratch.winograd_bytes(space, lhs.shape[0], channels, value.itemsize)


def _is_depthwise(lhs: Value, rhs: Value) -> bool:
    return 1 in rhs.shape[-2:] and len(rhs.shape) == len(lhs.shape)


def trial(program: Flat, number: int) -> int:
    """Return the maximum bytes for autotuning a value on a GPU.

    XLA autotunes during compilation on copies of all operands. The largest algorithm
    for convolutions uses Fourier transforms of images and kernels.
    """
    value = program.values[number]
    if value.opcode not in {"convolution", "dot"} or len(value.operands) < 2:
        return 0
    left, right = (program.values[operand] for operand in value.operands[:2])
    tensors = left.nbytes + right.nbytes
    if value.opcode == "dot":
        return tensors + _TRIAL_COPIES * value.nbytes
    return tensors + value.nbytes + _fourier(value, left, right)


def _fourier(value: Value, lhs: Value, rhs: Value) -> int:
    is_forward = len(lhs.shape) == 4 and lhs.shape[1:3] == value.shape[1:3]
    if not is_forward or _is_depthwise(lhs, rhs) or rhs.shape[0] < 2:
        return 0
    sizes = zip(lhs.shape[1:3], rhs.shape[:2], strict=True)
    padded_lengths = [scratch.padded_length(n, k) for n, k in sizes]
    images = lhs.shape[0] * (lhs.shape[3] + value.shape[3])
    pairs = rhs.shape[2] * rhs.shape[3]
    return scratch.fourier_bytes(padded_lengths, images, pairs, value.itemsize)
