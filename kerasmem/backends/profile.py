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

    Args:
        time_ns: Time in nanoseconds. In a plan, the index of the instruction.
        is_allocation: Boolean. False for a deallocation.
        address: Address of the block.
        requested_bytes: Requested bytes.
        given_bytes: Allocated bytes.
        in_use_bytes: Bytes in use after the event, as counted by the allocator.
        fragmentation: Float in [0, 1], or None. Fraction of the free bytes outside the
            largest free block.
        reserved_bytes: Bytes of the pool, or None.
        operation: Name of the operation in the framework, or `""`.
        layer: Path of the Keras layer, if the framework reports one.
        phase: One of `records.PHASES`, if the framework reports one.
        is_scratch: Boolean. Whether the block is temporary memory of an operation.
        shape: Shape, such as `"[64,128]"`, or `""`.
        dtype: Dtype, such as `"float32"`, or `""`.
        thread: Number of the thread.
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
        allocator: Name of the allocator or device in the framework.
        device: Name of the device, as in `Storage.device`.
        source: As in `records.Timeline`.
        events: All events. Events of one thread are in order.
        rounding_bytes: Allocations are at least the next multiple of this value.
    """

    allocator: str
    device: str
    source: str
    events: Sequence[MemoryEvent]
    rounding_bytes: int = 1


@dataclass(frozen=True)
class Storage:
    """Location of the value of a variable, or of another tensor in Python.

    Args:
        variable: Index of the variable, None for another tensor.
        device: Name of the device.
        address: Address of the first byte, or None.
        nbytes: Bytes of the value.
    """

    variable: int | None
    device: str
    address: int | None
    nbytes: int


@dataclass(frozen=True)
class Followed:
    """A model for a profiler.

    Args:
        model: The compiled model.
        layers: Pairs of layer and path. The path of the model is empty.
        variables: All `keras.Variable` objects of model and optimizer. Variables
            created by the first step are added before the profiler stops.
    """

    model: Any
    layers: Sequence[tuple[Any, str]]
    variables: list[Any]


@dataclass(frozen=True)
class Profile:
    """Result of a profiler.

    Args:
        traces: One trace per allocator.
        opening: Locations of variables and other tensors at the start, if known.
        closing: Locations at the end.
        problem: Message about missing data, or `""`.
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
        """Start.

        Raises:
            ProfilerUnavailableError: If the profiler cannot start. The message has a
                fix.
        """
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
    """Convert one event of a TensorFlow profile.

    Args:
        time_ns: Time in nanoseconds.
        name: `"MemoryAllocation"` or `"MemoryDeallocation"`.
        figures: Statistics by TensorFlow's names.
        thread: Number of the thread.
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
    """Return the events with the requested bytes from a torch snapshot.

    Args:
        events: Events of one device, in order.
        snapshot: Result of `torch.cuda.memory._snapshot()`.
        device: Index of the device.
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
