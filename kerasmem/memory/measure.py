"""Real steps on this machine's CPU, counted as the allocator of a GPU would.

Small batches run; from two of them larger ones are extended.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.profile import MemoryEvent
from kerasmem.errors import ConfigError, ModelError, ProfilerUnavailableError
from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.inputs import run_once, zeros
from kerasmem.memory.estimate.request import Request, answer_in_child
from kerasmem.memory.estimate.traced.on_torch import later_step, library_bytes
from kerasmem.memory.timeline import watched
from kerasmem.memory.timeline.blocks import change, consistent
from kerasmem.records import EstimatePart, MemoryEstimate

COUNTING_ALLOCATOR = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment in which TensorFlow's CPU allocator is the one of a GPU, and counts."""
_SPREAD = {"tensorflow": (0.88, 1.15), "torch": (0.92, 1.08)}
"""Multiples of the peak that are the interval."""
_STEPS = 3
_SMALL = 16


def measure_step(  # noqa: PLR0913 - those of `estimate_memory`
    model: Any,
    batch_size: int,
    *,
    optimizer: Any | None = None,
    dtype_policy: Any | None = None,
    jit_compile: bool | None = None,
    backend: str | None = None,
    training: bool = True,
    input_shape: Any | None = None,
    data: Any | None = None,
) -> MemoryEstimate:
    """Measure the memory of a step, from real steps in a child process.

    Batches of up to 16 zeros run on this machine's CPU, and larger ones are extended
    from two of them. Seconds to minutes; the model stays as it is.

    Args:
        model: a built `keras.Model`.
        batch_size: samples in the batch, from 1.
        optimizer: an optimizer or its name; None for the compiled one.
        dtype_policy: a dtype policy or its name; None for the layers' own.
        jit_compile: whether the step is compiled; None for what Keras would choose.
        backend: `"tensorflow"` or `"torch"`; None for the running one.
        training: True for a training step, False for `predict`.
        input_shape: lengths that the model leaves open, as in `estimate_memory`.
        data: Example samples, from which lengths, labels and sample weights are read.

    Returns:
        The `MemoryEstimate`: the peak in bytes with its interval, and its parts by
        layer and category.

    Raises:
        ConfigError: on JAX, which tells nothing of its memory on a CPU, or if another
            argument is wrong.
        DataError: if the data does not fit the model.
        ModelError: if the model is not built, or the child cannot make it from its
            config.
        ChildDiedError: if the child process ends by an error.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> measure_step(model, 0, optimizer="sgd")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        kerasmem.errors.ConfigError: The argument `batch_size` of estimate_memory ...
        >>> measure_step(model, 8, optimizer="sgd").method  # doctest: +SKIP
        'step'
    """
    request = checked_request(
        model,
        batch_size,
        optimizer=optimizer,
        dtype_policy=dtype_policy,
        jit_compile=jit_compile,
        backend=backend,
        training=training,
        device="cpu",
        input_shape=input_shape,
        data=data,
    )
    if request.backend == "jax":
        raise ConfigError(
            "JAX does not tell how much memory it uses on a CPU. Expected: a backend "
            "of 'tensorflow' or 'torch'. Received: backend='jax'. Next: use "
            "km.estimate_memory(model, batch_size, method='traced')."
        )
    return answer_in_child(__name__, request, COUNTING_ALLOCATOR)


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Return the estimate from real steps, in this process and on its backend.

    The model is trained for a few steps on zeros: hand in one of your own.

    Raises:
        ConfigError: if another backend is asked for than the running one.
        ModelError: if the allocator of this process does not count.
    """
    request.check_backend(keras.backend.backend(), "runs on the running backend")
    (peak,) = peaks_at(request, [request.batch_size])
    sums = watched(request.model)[0].bytes_by_place()
    peak = max(peak, sum(sums.values()))
    sums["temporary", None] += peak - sum(sums.values())
    low, high = (round(multiple * peak) for multiple in _SPREAD[request.backend])
    parts = (EstimatePart(*place, size) for place, size in sums.items())
    return request.answer("step", parts, (low, peak, high))


def peaks_at(request: Request, sizes: Sequence[int]) -> list[int]:
    """Return the peak at each batch size.

    Small batches run; from two of them the others are extended.
    """
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
    """Return the measured peak of the later of some steps, None if nobody tells.

    Args:
        request: the model and the batch.
        steps: how many run after the first one.
    """
    batch = zeros(request)
    run_once(request, batch)
    backends.current().reset_device_peak()
    for _ in range(steps):
        run_once(request, batch)
    readings = backends.current().device_memory()
    return max((reading.peak_bytes for reading in readings), default=None)


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
    """Return the events of a step with more samples than those that ran.

    Each block grows on the line through its sizes in the steps that ran. A line
    through the peaks would not do: another moment may be the fullest with more
    samples.

    Args:
        steps: the events of one step per batch size; all of one allocator.
        sizes: the one or two batch sizes.
        batch_size: the size that is asked for.
    """
    growth = _growth(steps, sizes, batch_size)
    grown: dict[int, int] = {}
    events, more = [], 0
    for number, event in enumerate(steps[-1]):
        if event.is_allocation:
            own = grown[event.address] = growth.get(number, 0)
        else:
            own = grown.pop(event.address, 0)
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
    """Return the most bytes in use."""
    return max([_before(events), *(event.in_use_bytes for event in events)])


def peak_in_pool(events: Sequence[MemoryEvent]) -> int:
    """Return the most bytes in use in a pool of TensorFlow's, its waste included."""
    pool = BFCAllocator(PoolPolicy(limit_bytes=1 << 50))
    before = _before(events)
    pool.allocate(max(before, 1))
    waste = pool.in_use_bytes - before  # of standing for many blocks
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
    """Return by how much each block of the last step grows, by its event's number."""
    if len(steps) == 1:
        return {}
    factor = (batch_size - sizes[-1]) / (sizes[-1] - sizes[0])
    before, after = (_by_operation(events) for events in steps)
    found = {}
    for operation, blocks in after.items():
        # Threads change the order of an operation's blocks, not that of their sizes.
        pairs = zip(before.get(operation, ()), blocks, strict=False)
        for (small, _), (large, number) in pairs:
            # More samples never need less.
            found[number] = round(factor * max(large - small, 0))
    return found


def _by_operation(events: Sequence[MemoryEvent]) -> dict[str, list[tuple[int, int]]]:
    """Return size and number of each operation's blocks, smallest first."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, event in enumerate(events):
        if event.is_allocation:
            found[event.operation].append((event.requested_bytes, number))
    return {operation: sorted(blocks) for operation, blocks in found.items()}
