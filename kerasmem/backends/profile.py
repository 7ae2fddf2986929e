"""What a framework's memory profiler saw, before anybody asked what it means."""

import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


class ProfilerUnavailableError(RuntimeError):
    """The backend or the device gives no profile of the memory.

    The message names the variable to set or the backend to use instead.
    """


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """The allocation or the free of one block.

    Args:
        time_ns: when, in nanoseconds; in a plan the number of the instruction.
        is_allocation: False for a free.
        address: of the block.
        requested_bytes: what was asked for.
        given_bytes: what the allocator gave.
        in_use_bytes: bytes in use after the event, by the allocator's own count.
        fragmentation: share of the pool's free bytes outside of its largest free
            block, 0 to 1; None if the allocator does not say.
        reserved_bytes: bytes of the pool; None if the allocator does not say.
        operation: the framework's name of what allocated, `""` if unknown.
        layer: path of the Keras layer, if the framework says so itself.
        phase: one of `records.PHASES`, if the framework says so itself.
        is_scratch: whether an operation asked for its own use, not for a result.
        shape: such as `"[64,128]"`, `""` if unknown.
        dtype: such as `"float32"`, `""` if unknown.
        thread: a number for the thread that did it.
    """

    time_ns: int
    is_allocation: bool
    address: int
    requested_bytes: int
    given_bytes: int
    in_use_bytes: int
    fragmentation: float | None = None
    reserved_bytes: int | None = None
    operation: str = ""
    layer: str | None = None
    phase: str = "unknown"
    is_scratch: bool = False
    shape: str = ""
    dtype: str = ""
    thread: int = 0


@dataclass(frozen=True)
class AllocatorTrace:
    """The events of one allocator.

    Args:
        allocator: the framework's name of the allocator or device.
        device: name of the device whose memory it is, as in `Storage.device`.
        source: as in `records.Timeline`.
        events: every event; those of one thread in the order in which they came.
        rounding_bytes: the allocator gives at least the next multiple of this.
    """

    allocator: str
    device: str
    source: str
    events: Sequence[MemoryEvent]
    rounding_bytes: int = 1


@dataclass(frozen=True)
class Storage:
    """Where the value of a variable lies, or another tensor that Python holds.

    Args:
        variable: index of the variable among those asked for, None for a tensor.
        device: name of the device.
        address: of the first byte, None if the framework does not say.
        nbytes: bytes of the value.
    """

    variable: int | None
    device: str
    address: int | None
    nbytes: int


@dataclass(frozen=True)
class Followed:
    """What a profiler has to know of a model.

    Args:
        model: the compiled model.
        layers: every layer with its path; the model's own is empty.
        variables: its `keras.Variable`s and the optimizer's; those that the first step
            makes are added before the profiler stops.
    """

    model: Any
    layers: Sequence[tuple[Any, str]]
    variables: list[Any]


@dataclass(frozen=True)
class Profile:
    """What a profiler saw.

    Args:
        traces: one per allocator.
        opening: where the variables lay in the beginning, and other tensors that
            Python held, where the framework can tell.
        closing: the same in the end.
        problem: what a user should know of that is missing, `""` if nothing is.
    """

    traces: Sequence[AllocatorTrace]
    opening: Sequence[Storage] = ()
    closing: Sequence[Storage] = ()
    problem: str = ""


class MemoryProfiler(Protocol):
    """Watches the allocators of a framework for a while."""

    names: str
    """How operations are named: `"tensorflow"`, `"xla"`, or `"given"` for events
    that name layer and phase themselves."""

    def start(self) -> None:
        """Begin.

        Raises:
            ProfilerUnavailableError: if that cannot be; the message says what to do.
        """
        ...

    def stop(self) -> Profile:
        """End, leave nothing behind, and return what happened."""
        ...


_ALLOCATION = "MemoryAllocation"
EVENT_NAMES = frozenset({_ALLOCATION, "MemoryDeallocation"})
# The enumeration of `types.proto`.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8",
    7: "string", 8: "complex64", 9: "int64", 10: "bool", 14: "bfloat16",
    17: "uint16", 18: "complex128", 19: "float16", 20: "resource", 21: "variant",
    22: "uint32", 23: "uint64",
}  # fmt: skip


def memory_event(
    time_ns: int, name: str, figures: Mapping[str, Any], thread: int = 0
) -> MemoryEvent:
    """Return what one event of a profile says.

    Args:
        time_ns: when.
        name: `"MemoryAllocation"` or `"MemoryDeallocation"`.
        figures: its statistics, by TensorFlow's names for them.
        thread: a number for the thread.
    """
    is_allocation = name == _ALLOCATION
    return MemoryEvent(
        time_ns=time_ns,
        is_allocation=is_allocation,
        address=figures["addr"],
        requested_bytes=figures["requested_bytes"],
        given_bytes=figures["allocation_bytes"],
        in_use_bytes=figures["bytes_allocated"],
        fragmentation=figures["fragmentation"],
        operation=figures.get("tf_op", "") if is_allocation else "",
        is_scratch=figures.get("region_type") == "temp",
        shape=figures.get("shape", ""),
        dtype=_DTYPES.get(figures.get("data_type", 0), ""),
        thread=thread,
    )


def device_of(allocator: str) -> str:
    """Return the device that an allocator belongs to, `""` for none.

    Example:
        >>> device_of("GPU_0_bfc"), device_of("gpu_host_bfc"), device_of("mklcpu")
        ('GPU:0', '', 'CPU')
    """
    gpu = re.search(r"gpu_(?:async_)?(\d+)|(\d+)_bfc", allocator.lower())
    if gpu:
        return f"GPU:{gpu[1] or gpu[2]}"
    # Pinned memory of the host holds no variable; logical CPUs share one allocator.
    return "" if "gpu_host" in allocator else "CPU"


def with_requests(
    events: Sequence[MemoryEvent], snapshot: Mapping[str, Any], device: int
) -> list[MemoryEvent]:
    """Return the events with the bytes that were asked for, not only given.

    Args:
        events: of one device, in order.
        snapshot: what `torch.cuda.memory._snapshot()` returns.
        device: number of the device.
    """
    sizes_by_address = _requests(snapshot, device)
    now: dict[int, int] = {}
    complete = []
    for event in events:
        if event.is_allocation:
            sizes = sizes_by_address[event.address]
            now[event.address] = sizes.popleft() if sizes else event.given_bytes
        size = now.get(event.address, event.given_bytes)
        complete.append(replace(event, requested_bytes=size))
    return complete


def _requests(snapshot: Mapping[str, Any], device: int) -> dict[int, deque[int]]:
    sizes_by_address: dict[int, deque[int]] = defaultdict(deque)
    for entry in snapshot["device_traces"][device]:
        if entry["action"] == "alloc":
            sizes_by_address[entry["addr"]].append(entry["size"])
    return sizes_by_address
