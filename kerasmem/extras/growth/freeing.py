"""Giving back memory that nothing of the program holds."""

import gc
from typing import NamedTuple

import keras

from kerasmem import backends
from kerasmem.backends.heap import trim_heap
from kerasmem.processes.host import resident_bytes
from kerasmem.records import own_allocators


class Freed(NamedTuple):
    """What was given back, bytes.

    Args:
        host_bytes: resident bytes of the process, before less after.
        device_bytes: bytes in use by device, before less after.
    """

    host_bytes: int
    device_bytes: dict[str, int]


def free() -> Freed:
    """Give back what Keras, the framework and the C library can give back.

    Keras's global state (`keras.utils.clear_session`), what the garbage collector
    finds, the framework's caches of compiled programs and of device memory, and free
    pages of the C library's heap. Models that a variable holds stay and work on; what
    was compiled for them is compiled again when they are called.
    """
    host, devices = resident_bytes(), _device_bytes()
    keras.utils.clear_session()
    gc.collect()
    backends.current().free_caches()
    gc.collect()
    trim_heap()
    now = _device_bytes()
    return Freed(
        host - resident_bytes(),
        {name: size - now.get(name, 0) for name, size in devices.items()},
    )


def _device_bytes() -> dict[str, int]:
    devices = own_allocators(backends.current().device_memory())
    return {one.name: one.reserved_bytes or one.current_bytes for one in devices}
