"""Raw data of the memory profilers."""

import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


class ProfilerUnavailableError(RuntimeError):
    """The backend or device has no memory profiler.

    The message contains the variable to set or the backend to use.
    """


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """An allocation or a deallocation of one block.

    In a plan, `time_ns` is the index of the instruction. `in_use_bytes` is the
    allocator's count after the event. `fragmentation` is the fraction of the free bytes
    outside the largest free block. `is_scratch` marks temporary memory of an operation.
    `layer` and `phase` are set if the framework reports them.
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
    """The events of one allocator, in order per thread.

    Allocations are at least the next multiple of `rounding_bytes`.
    """

    allocator: str
    device: str
    source: str
    events: Sequence[MemoryEvent]
    rounding_bytes: int = 1


@dataclass(frozen=True)
class Storage:
    """Location of the value of a variable, or of another tensor."""

    variable: int | None
    device: str
    address: int | None
    nbytes: int


@dataclass(frozen=True)
class Followed:
    """A model for a profiler, with its layers, their paths and all its variables.

    Variables created by the first step are added before the profiler stops.
    """

    model: Any
    layers: Sequence[tuple[Any, str]]
    variables: list[Any]


@dataclass(frozen=True)
class Profile:
    """Traces per allocator, and the locations of variables at start and end.

    `problem` is a message about missing data, or `""`.
    """

    traces: Sequence[AllocatorTrace]
    opening: Sequence[Storage] = ()
    closing: Sequence[Storage] = ()
    problem: str = ""


class MemoryProfiler(Protocol):
    """Profiles the allocators of a framework."""

    names: str
    """Naming scheme of operations: `"tensorflow"`, `"xla"` or `"given"`.

    `"given"` events contain layer and phase.
    """

    def start(self) -> None:
        """Start, or raise `ProfilerUnavailableError` with a fix."""
        ...

    def stop(self) -> Profile:
        """Stop, clean up and return the profile."""
        ...


_ALLOCATION = "MemoryAllocation"
EVENT_NAMES = frozenset({_ALLOCATION, "MemoryDeallocation"})
# Enumeration of `types.proto`.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8",
    7: "string", 8: "complex64", 9: "int64", 10: "bool", 14: "bfloat16",
    17: "uint16", 18: "complex128", 19: "float16", 20: "resource", 21: "variant",
    22: "uint32", 23: "uint64",
}  # fmt: skip


def memory_event(
    time_ns: int, name: str, figures: Mapping[str, Any], thread: int = 0
) -> MemoryEvent:
    """Convert one event of a TensorFlow profile with its statistics."""
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
    """Return the device of an allocator, or `""`.

    Example:
        >>> device_of("GPU_0_bfc"), device_of("gpu_host_bfc"), device_of("mklcpu")
        ('GPU:0', '', 'CPU')
    """
    gpu = re.search(r"gpu_(?:async_)?(\d+)|(\d+)_bfc", allocator.lower())
    if gpu:
        return f"GPU:{gpu[1] or gpu[2]}"
    # Pinned host memory contains no variables. Logical CPUs share one allocator.
    return "" if "gpu_host" in allocator else "CPU"


def with_requests(
    events: Sequence[MemoryEvent], snapshot: Mapping[str, Any], device: int
) -> list[MemoryEvent]:
    """Return the events of a device with the requested bytes from a torch snapshot."""
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
