"""Torch's memory snapshot, for what its profiler leaves out."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kerasmem.backends.profile import MemoryEvent


def with_requests(
    events: Sequence[MemoryEvent], snapshot: Mapping[str, Any], device: int
) -> list[MemoryEvent]:
    """Return the events with the bytes that were asked for, not only given.

    Args:
        events: of one device, in order.
        snapshot: what `torch.cuda.memory._snapshot()` returns.
        device: number of the device.
    """
    asked = _requests(snapshot, device)
    now: dict[int, int] = {}
    complete = []
    for event in events:
        if event.is_allocation:
            sizes = asked[event.address]
            now[event.address] = sizes.popleft() if sizes else event.given_bytes
        size = now.get(event.address, event.given_bytes)
        complete.append(replace(event, requested_bytes=size))
    return complete


def _requests(snapshot: Mapping[str, Any], device: int) -> dict[int, deque[int]]:
    """Return the bytes asked for in each allocation at an address, in order."""
    asked: dict[int, deque[int]] = defaultdict(deque)
    for entry in snapshot["device_traces"][device]:
        if entry["action"] == "alloc":
            asked[entry["addr"]].append(entry["size"])
    return asked
