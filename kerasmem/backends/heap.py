"""The heap of the C library: what it has, and its free pages given back."""

import ctypes
from contextlib import suppress
from typing import NamedTuple


class CHeap(NamedTuple):
    """What the heap of the C library has, bytes.

    Args:
        used_bytes: what was handed out, mapped blocks included.
        free_bytes: what was given back and is kept to be handed out again; some of it
            may be given back to the kernel.
    """

    used_bytes: int
    free_bytes: int


def c_heap() -> CHeap | None:
    """Return what the C library's heap has; None where it is not glibc's, from 2.33."""
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
    """Give free pages back to the kernel; nothing where the C library cannot."""
    # glibc keeps freed pages; other C libraries have no such function.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
