"""Method "measured": real steps on the CPU with the allocator of a GPU.

Small batches run. Larger batches are extrapolated from two small ones.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import keras

from kerasmem import backends
from kerasmem.backends.profile import MemoryEvent, ProfilerUnavailableError
from kerasmem.checks import invalid
from kerasmem.errors import ConfigError, ModelError
from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.memory.estimate.inputs import run_once, zeros
from kerasmem.memory.estimate.request import Request, answer_in_child
from kerasmem.memory.estimate.traced.on_torch import later_step, library_bytes
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.blocks import change, consistent
from kerasmem.records import EstimatePart, MemoryEstimate

COUNTING_ALLOCATOR = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment in which TensorFlow's CPU uses the GPU allocator with its counters."""
_SPREAD = {"tensorflow": (0.88, 1.15), "torch": (0.92, 1.08)}
"""Bounds of the interval as multiples of the peak."""
_STEPS = 3
_SMALL = 16


def estimate(request: Request) -> MemoryEstimate:
    """Estimate the memory of a step from real steps in a child process.

    Raises:
        ConfigError: If the step cannot be measured on the CPU of this machine.
        ModelError: If the child process cannot restore the model from its config.
    """
    if request.device != "cpu" or request.sharding.devices > 1:
        device = request.card or request.device
        raise ConfigError(
            "A step is measured on the CPU of this machine. Expected: device='cpu' and "
            f"no distribution. Received: {device=} and {request.sharding.devices} "
            "devices. Next: pass method='analytic'."
        )
    if request.generate is not None:
        valid = "None with method='measured'"
        raise invalid("estimate_memory", "generate", request.generate, valid)
    if request.backend == "jax":
        raise ConfigError(
            "JAX does not report how much memory it uses on a CPU. Expected: backend="
            "'tensorflow' or 'torch' with method='measured'. Received: backend='jax'. "
            "Next: pass method='traced'."
        )
    return answer_in_child(__name__, request, COUNTING_ALLOCATOR)


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Estimate the memory from real steps in this process.

    The model is trained for a few steps on zeros, so it must be a copy.

    Raises:
        ConfigError: If the requested backend is not the current backend.
        ModelError: If the allocator of this process has no counters.
    """
    request.check_backend(keras.backend.backend(), "is measured on the current backend")
    (peak,) = peaks_at(request, [request.batch_size])
    sums = watched(request.model)[0].bytes_by_place()
    peak = max(peak, sum(sums.values()))
    sums["temporary", None] += peak - sum(sums.values())
    low, high = (round(multiple * peak) for multiple in _SPREAD[request.backend])
    parts = (EstimatePart(*place, size) for place, size in sums.items())
    return request.answer("measured", parts, (low, peak, high))


def peaks_at(request: Request, sizes: Sequence[int]) -> list[int]:
    """Return the peak at each batch size, extrapolated for large batches."""
    counts = request.backend == "tensorflow"
    ran: dict[int, Sequence[MemoryEvent]] = {}
    peaks = []
    for size in sizes:
        small = small_batches(size)
        if counts and small == (size,):
            peaks.append(later_peak(request.with_batch_size(size), _STEPS) or 0)
            continue
        for one in small:
            step = _real_step if counts else later_step
            ran[one] = ran.get(one) or step(request.with_batch_size(one))
        events = extended([ran[one] for one in small], small, size)
        peak = (
            peak_in_pool(events) if counts else peak_of(events) + library_bytes(request)
        )
        peaks.append(peak)
    return peaks


def later_peak(request: Request, steps: int) -> int | None:
    """Return the measured peak after the first step, or `None` if unknown."""
    batch = zeros(request)
    run_once(request, batch)
    backends.current().reset_device_peak()
    for _ in range(steps):
        run_once(request, batch)
    readings = backends.current().device_memory()
    return max((reading.peak_bytes for reading in readings), default=None)


def _real_step(request: Request) -> Sequence[MemoryEvent]:
    """Return the events of a later step, or raise `ModelError` without counters."""
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


def small_batches(batch_size: int) -> tuple[int, ...]:
    """Return one or two batch sizes that are cheap to run, ascending.

    Example:
        >>> small_batches(64), small_batches(3), small_batches(1)
        ((8, 16), (3,), (1,))
    """
    return (batch_size,) if batch_size <= _SMALL else (_SMALL // 2, _SMALL)


def extended(
    steps: Sequence[Sequence[MemoryEvent]], sizes: Sequence[int], batch_size: int
) -> list[MemoryEvent]:
    """Extrapolate the events of a step to a larger batch size.

    Each block is extrapolated linearly from its sizes in the measured steps. A line
    through the peaks would be wrong, because the peak may move to another operation.
    """
    growth = _growth(steps, sizes, batch_size)
    growth_by_address: dict[int, int] = {}
    events, more = [], 0
    for number, event in enumerate(steps[-1]):
        if event.is_allocation:
            own = growth_by_address[event.address] = growth.get(number, 0)
        else:
            own = growth_by_address.pop(event.address, 0)
        more += own if event.is_allocation else -own
        events.append(
            replace(
                event,
                requested_bytes=event.requested_bytes + own,
                given_bytes=event.given_bytes + own,
                in_use_bytes=event.in_use_bytes + more,
            )
        )
    return events


def peak_of(events: Sequence[MemoryEvent]) -> int:
    """Return the maximum bytes in use."""
    return max([_before(events), *(event.in_use_bytes for event in events)])


def peak_in_pool(events: Sequence[MemoryEvent]) -> int:
    """Return the maximum bytes in use in a TensorFlow pool, including its waste."""
    pool = BFCAllocator(PoolPolicy(limit_bytes=1 << 50))
    before = _before(events)
    pool.allocate(max(before, 1))
    # Rounding of the block that represents all older blocks.
    waste = pool.in_use_bytes - before
    blocks: dict[int, int | None] = {}
    for event in events:
        if event.is_allocation:
            blocks[event.address] = pool.allocate(max(event.requested_bytes, 1))
        elif (address := blocks.pop(event.address, None)) is not None:
            pool.free(address)
    return pool.peak_bytes - waste


def _before(events: Sequence[MemoryEvent]) -> int:
    return events[0].in_use_bytes - change(events[0]) if events else 0


def _growth(
    steps: Sequence[Sequence[MemoryEvent]], sizes: Sequence[int], batch_size: int
) -> dict[int, int]:
    if len(steps) == 1:
        return {}
    factor = (batch_size - sizes[-1]) / (sizes[-1] - sizes[0])
    before, after = (_by_operation(events) for events in steps)
    growth = {}
    for operation, blocks in after.items():
        # Threads change the order of an operation's blocks, but not of their sizes.
        pairs = zip(before.get(operation, ()), blocks, strict=False)
        for (small, _), (large, number) in pairs:
            # A larger batch never needs less memory.
            growth[number] = round(factor * max(large - small, 0))
    return growth


def _by_operation(events: Sequence[MemoryEvent]) -> dict[str, list[tuple[int, int]]]:
    by_operation: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, event in enumerate(events):
        if event.is_allocation:
            by_operation[event.operation].append((event.requested_bytes, number))
    return {operation: sorted(blocks) for operation, blocks in by_operation.items()}
