"""What TensorFlow's profiler writes about one allocation or free."""

import re
from collections.abc import Mapping
from typing import Any

from kerasmem.backends.profile import MemoryEvent

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
