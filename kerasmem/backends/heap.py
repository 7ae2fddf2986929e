"""Size of the heap of the C library, and release of its free pages."""

import ctypes
from contextlib import suppress
from typing import NamedTuple


class CHeap(NamedTuple):
    """Allocated and freed bytes of the C heap.

    Some freed bytes may already be returned to the kernel.
    """

    used_bytes: int
    free_bytes: int


def c_heap() -> CHeap | None:
    """Return the size of the C heap, or None without glibc 2.33 or later."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return CHeap(info.uordblks + info.hblkhd, info.fordblks)


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def trim_heap() -> None:
    """Return free pages of the heap to the kernel, if supported."""
    # Only glibc keeps freed pages and has this function.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
