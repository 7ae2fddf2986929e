"""What is in use on a whole NVIDIA card, by every process, as its driver tells."""

import functools
import importlib
import itertools
import os
from typing import Any, NamedTuple


class CardReading(NamedTuple):
    """Bytes in use on a card, and all of its bytes."""

    used_bytes: int
    total_bytes: int


def read_card(ordinal: int) -> CardReading | None:
    """Return what is in use on a card, None without NVIDIA's driver.

    CUDA's and the driver's order of the cards are taken to be the same. They are for
    cards of one kind, and for any with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.

    Args:
        ordinal: CUDA's number of the card, from 0 among those that
            `CUDA_VISIBLE_DEVICES` leaves.
    """
    handle = _handle(ordinal, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if handle is None:
        return None
    pynvml = _pynvml()
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:  # a card that keeps it to itself
        return None
    return CardReading(int(memory.used), int(memory.total))


def count_cards() -> int:
    """Return how many cards `CUDA_VISIBLE_DEVICES` leaves, 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return next(n for n in itertools.count() if _handle(n, visible) is None)


def own_bytes(ordinal: int) -> int | None:
    """Return what this process has of a card, all that lies in its pools included.

    None where the driver does not tell, as in a container with processes of its own.
    """
    handle = _handle(ordinal, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if handle is None:
        return None
    pynvml = _pynvml()
    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:  # see `read_card`
        return None
    own = [p.usedGpuMemory for p in processes if p.pid == os.getpid()]
    return own[0] if own else None


@functools.cache
def _pynvml() -> Any:
    return importlib.import_module("pynvml")


@functools.cache
def _handle(ordinal: int, visible: str | None) -> Any | None:
    pynvml = _pynvml()
    try:
        pynvml.nvmlInit()
        if visible is None:
            return pynvml.nvmlDeviceGetHandleByIndex(ordinal)
        names = [name.strip() for name in visible.split(",")]
        name = names[ordinal] if ordinal < len(names) else ""
        if name.isdecimal():
            return pynvml.nvmlDeviceGetHandleByIndex(int(name))
        return _by_uuid(name)
    except pynvml.NVMLError:  # no driver, or no such card
        return None


def _by_uuid(begin: str) -> Any:
    pynvml = _pynvml()
    # CUDA takes the first characters of a uuid for the whole, the driver does not.
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if begin and pynvml.nvmlDeviceGetUUID(handle).startswith(begin):
            return handle
    return pynvml.nvmlDeviceGetHandleByUUID(begin)  # a MIG slice, or an error
