"""Memory in use on an NVIDIA GPU by all processes, read from the driver."""

import functools
import importlib
import itertools
import os
from typing import Any, NamedTuple


class CardReading(NamedTuple):
    """Used and total memory of a GPU, in bytes."""

    used_bytes: int
    total_bytes: int


def read_card(ordinal: int) -> CardReading | None:
    """Read the used and total memory of a GPU. Returns None without an NVIDIA driver.

    CUDA and the driver number GPUs of one model in the same order. For other machines,
    `CUDA_DEVICE_ORDER=PCI_BUS_ID` is needed. `ordinal` is the CUDA index among the GPUs
    in `CUDA_VISIBLE_DEVICES`.
    """
    memory = _asked(ordinal, "nvmlDeviceGetMemoryInfo")
    return memory and CardReading(int(memory.used), int(memory.total))


def count_cards() -> int:
    """Return the number of GPUs in `CUDA_VISIBLE_DEVICES`, 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return next(n for n in itertools.count() if _handle(n, visible) is None)


def own_bytes(ordinal: int) -> int | None:
    """Return the memory of this process on a GPU, including unused pool memory.

    Returns None if the driver does not list the process, for example in a container.
    """
    processes = _asked(ordinal, "nvmlDeviceGetComputeRunningProcesses") or ()
    own = [p.usedGpuMemory for p in processes if p.pid == os.getpid()]
    return own[0] if own else None


def _asked(ordinal: int, function: str) -> Any | None:
    handle = _handle(ordinal, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if handle is None:
        return None
    pynvml = _pynvml()
    try:
        return getattr(pynvml, function)(handle)
    except pynvml.NVMLError:  # Some GPUs do not report this figure.
        return None


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
    except pynvml.NVMLError:  # There is no driver, or no GPU with this index.
        return None


def _by_uuid(begin: str) -> Any:
    pynvml = _pynvml()
    # CUDA accepts a prefix of a UUID. The driver needs the complete UUID.
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if begin and pynvml.nvmlDeviceGetUUID(handle).startswith(begin):
            return handle
    # The complete UUID of a MIG slice. The driver raises an error for other names.
    return pynvml.nvmlDeviceGetHandleByUUID(begin)
