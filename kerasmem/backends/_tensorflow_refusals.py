"""What TensorFlow's BFC allocators write down whenever they refuse a request.

Where the environment variable `TF_BFC_MEMORY_DUMP` names the beginning of a path, each
refused request becomes a file with every chunk of the pool. The variable is read at
that moment, so it need not be set before TensorFlow starts, and it costs nothing until
then.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import bfc_memory_map_pb2

from kerasmem.backends.refusals import PoolState, RefusalLog
from kerasmem.units import MIB

_PLACE = "TF_BFC_MEMORY_DUMP"
_USES_BFC = "TF_CPU_ALLOCATOR_USE_BFC"
_CPU_LIMIT, _USUAL_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB", 64 * 1024


@contextmanager
def refusals() -> Iterator[RefusalLog]:
    """Give a log of what is refused while the scope is open.

    Where the user has it written down already, nothing is changed and nothing noted.
    """
    if os.environ.get(_PLACE):
        yield _Dumps(None)
        return
    with tempfile.TemporaryDirectory(prefix="kerasmem-refusals-") as folder:
        os.environ[_PLACE] = str(Path(folder, "dump"))
        try:
            yield _Dumps(Path(folder))
        finally:
            os.environ.pop(_PLACE, None)


def cpu_limit_bytes() -> int | None:
    """Return the most bytes that the CPU allocator hands out, None without a limit."""
    if os.environ.get(_USES_BFC, "").lower() not in {"1", "true"}:
        return None
    return int(os.environ.get(_CPU_LIMIT) or _USUAL_LIMIT) * MIB


class _Dumps:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def fullest(self) -> PoolState | None:
        """Return the state in which most was in use; its files are gone then."""
        files = sorted(self._folder.iterdir()) if self._folder else []
        states = [state for file in files if (state := _read(file)) is not None]
        for file in files:
            file.unlink()
        return max(states, key=lambda state: state.in_use_bytes, default=None)


def _read(file: Path) -> PoolState | None:
    dump = bfc_memory_map_pb2.MemoryDump()
    try:
        dump.ParseFromString(file.read_bytes())
    except DecodeError:  # the disk was full, or it is still being written
        return None
    sizes = [(chunk.size, chunk.in_use) for chunk in dump.chunk]
    return PoolState(
        in_use_bytes=sum(size for size, in_use in sizes if in_use),
        pool_bytes=sum(size for size, _ in sizes),
        largest_free_bytes=max((size for size, used in sizes if not used), default=0),
    )
