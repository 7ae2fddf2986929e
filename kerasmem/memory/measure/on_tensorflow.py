"""Real steps on TensorFlow's CPU, with the allocator of a GPU.

What runs on the CPU differs from a GPU in the scratch memory of convolutions, in the
order of operations and in layouts. A trace knows these; a step knows what no trace
sees. So the trace for the GPU is corrected by how far the trace for the CPU was off.
"""

from collections.abc import Sequence

from kerasmem import backends
from kerasmem.backends.profile import MemoryEvent
from kerasmem.backends.trace import tracer
from kerasmem.errors import ModelError, ProfilerUnavailableError
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced.batch import symbolic_batch
from kerasmem.memory.estimate.traced.graph import written
from kerasmem.memory.estimate.traced.here import as_keras_compiles
from kerasmem.memory.estimate.traced.here import estimate_here as trace
from kerasmem.memory.estimate.traced.on_tensorflow import loops
from kerasmem.memory.measure.batch import run_once, with_batch_size, zeros
from kerasmem.memory.measure.outcome import from_peak, scaled
from kerasmem.memory.measure.small import (
    extended,
    peak_in_pool,
    small_batches,
)
from kerasmem.memory.program import peak_of, plan
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.order import consistent
from kerasmem.records import MemoryEstimate

_SPREAD = (0.88, 1.15)
_UNCORRECTED_SPREAD = (0.8, 1.25)
_FURTHEST = 1.25
_STEPS = 3


def estimate_here(request: Request) -> MemoryEstimate:
    """Return the estimate from real steps.

    Raises:
        ModelError: if the allocator of this process does not count.
    """
    request = as_keras_compiles(request)
    try:
        traced = trace(request) if request.device == "gpu" else None
    except ModelError:  # a loop: then the CPU's figure has to do
        traced = None
    if traced is None:
        (peak,) = peaks_at(request, [request.batch_size])
        spread = _SPREAD if request.device == "cpu" else _UNCORRECTED_SPREAD
        return from_peak(request, watched(request.model)[0], peak, spread)
    if request.jit_compile:
        return scaled(traced, 1.0)
    small = small_batches(request.batch_size)[-1]
    return scaled(traced, _correction(with_batch_size(request, small)))


def peaks_at(request: Request, sizes: Sequence[int]) -> list[int]:
    """Return the peak on this machine's CPU at each batch size.

    Small batches run; from two of them the others are extended.
    """
    ran: dict[int, Sequence[MemoryEvent]] = {}
    peaks = []
    for size in sizes:
        small = small_batches(size)
        if small == (size,):
            peaks.append(_measured(with_batch_size(request, size)))
            continue
        for one in small:
            ran[one] = ran.get(one) or _real_step(with_batch_size(request, one))
        steps = [ran[one] for one in small]
        peaks.append(peak_in_pool(extended(steps, small, size)))
    return peaks


def _measured(request: Request) -> int:
    """Return the measured peak of the later of a few steps."""
    batch = zeros(request)
    run_once(request, batch)
    backends.current().reset_device_peak()
    for _ in range(_STEPS):
        run_once(request, batch)
    return max(reading.peak_bytes for reading in backends.current().device_memory())


def _correction(request: Request) -> float:
    """Return how much more a real step needs than its trace says, on the CPU.

    1 where the CPU runs a loop, of which no trace knows what it keeps per round.
    """
    model, followed = watched(request.model)
    graph = tracer().step_graph(
        followed,
        symbolic_batch(request),
        training=request.training,
        on_gpu=False,
    )
    if loops(graph):
        return 1.0
    measured = without_scratch(_real_step(request))
    step = written(graph, model, device=None)
    planned = plan(step, in_place=True)
    before = sum(x.nbytes for x in step.present)
    expected = peak_of(planned.events, 1, step.present).nbytes - before
    factor = measured / max(expected, 1)
    # Beyond that the two did not see the same step.
    return min(max(factor, 1 / _FURTHEST), _FURTHEST)


def _real_step(request: Request) -> Sequence[MemoryEvent]:
    """Return the events of a later step.

    Raises:
        ModelError: if the allocator of this process does not count.
    """
    batch = zeros(request)
    run_once(request, batch)
    profiler = backends.current().memory_profiler(watched(request.model)[1])
    try:
        profiler.start()
    except ProfilerUnavailableError as error:
        raise ModelError(
            f"A step of {request.model.name!r} cannot be measured: {error}"
        ) from error
    try:
        run_once(request, batch)
    finally:
        profile = profiler.stop()
    return consistent(max((trace.events for trace in profile.traces), key=len))


def without_scratch(events: Sequence[MemoryEvent]) -> int:
    """Return the most bytes that a step added, less what kernels took while running.

    A block is scratch if it is asked for as such and gone before its thread goes on
    to another operation.
    """
    scratch = _scratch(events)
    now = most = 0
    sizes: dict[int, int] = {}
    for number, event in enumerate(events):
        if event.is_allocation:
            sizes[event.address] = 0 if number in scratch else event.requested_bytes
            now += sizes[event.address]
        else:
            now -= sizes.pop(event.address, 0)
        most = max(most, now)
    return most


def _scratch(events: Sequence[MemoryEvent]) -> set[int]:
    running: dict[int, str] = {}
    made: dict[int, int] = {}
    found: set[int] = set()
    for number, event in enumerate(events):
        if event.is_allocation:
            running[event.thread] = event.operation
            made[event.address] = number
            continue
        begin = made.pop(event.address, None)
        if begin is None or not events[begin].is_scratch:
            continue
        if running.get(events[begin].thread) == events[begin].operation:
            found.add(begin)
    return found
