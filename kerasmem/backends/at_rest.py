"""Variables that are offloaded to disk, with few values in memory at a time.

A layer gets its values from the file when it computes. New values of a variable are
written to an unnamed temporary file, which disappears with the process.
"""

import math
import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.heap import trim_heap
from kerasmem.backends.lazy import LazyValues
from kerasmem.backends.mapped import MappedArray
from kerasmem.errors import OutputError
from kerasmem.types import Variable

MOST_LENT_BYTES = 32 << 20
"""Maximum bytes of loaded values. A larger value is loaded without others."""

_LEAST_KEPT = 1 << 14
"""Minimum number of entries of an offloaded value."""

_ALIGNMENT = mmap.ALLOCATIONGRANULARITY

_REGION_BYTES = 1 << 30
"""Bytes of a file per mapping, because the system limits the number of mappings."""


class Offloaded:
    """Values in files, and a cache of loaded values."""

    def __init__(self, values: LazyValues, folder: Path) -> None:
        self._values = values
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - see `close`
        self._region: mmap.mmap | None = None
        self._end = self._start = 0
        # A tensor over a file may be modified, which must not change the file.
        self.access = mmap.ACCESS_COPY if values.adopts else mmap.ACCESS_READ
        self._lent: OrderedDict[int, tuple[MappedArray, Any]] = OrderedDict()
        self._bytes_freed = 0
        self._last: MappedArray | None = None

    def value(self, variable: Variable, source: MappedArray) -> Any:
        """Return the value of a variable in a file as a cached tensor."""
        key = id(variable)
        entry = self._lent.get(key)
        if entry is not None and entry[0] is source:
            self._lent.move_to_end(key)
            return entry[1]
        self._take_back(key)
        bytes_lent = sum(array.nbytes for array, _ in self._lent.values())
        while self._lent and bytes_lent + source.nbytes > MOST_LENT_BYTES:
            oldest = next(iter(self._lent))
            bytes_lent -= self._lent[oldest][0].nbytes
            self._take_back(oldest)
        tensor = self._values.lend(variable, source.aligned())
        if not (self._values.adopts and source.flags.aligned):  # `tensor` may be a copy
            source.release_around()
        self._lent[key] = source, tensor
        return tensor

    def array(self, source: MappedArray) -> np.ndarray:
        """Return a readable array over the file and release the previous one."""
        if self._last is not None and self._last is not source:
            self._last.release_around()
        self._last = source
        return source.aligned()

    def keeps(self, variable: Variable) -> bool:
        """Return whether a variable is large enough to be offloaded."""
        return math.prod(variable.shape) >= _LEAST_KEPT

    def keep(self, array: Any) -> MappedArray | None:
        """Return a copy of an array in the file, or None for a small array."""
        if isinstance(array, MappedArray) and array.place is not None:
            return array
        values = keras.ops.convert_to_numpy(array) if _is_tensor(array) else array
        values = np.ascontiguousarray(values)
        if values.size < _LEAST_KEPT or values.dtype.hasobject:
            return None
        try:
            region, start, place = self._room(values.nbytes)
            remaining, at = values.reshape(-1).view(np.uint8).data, place
            while remaining:  # one call writes at most 2 GiB
                count = os.pwrite(self._file.fileno(), remaining, at)
                remaining, at = remaining[count:], at + count
        except OSError as error:
            raise OutputError(
                f"Could not write the new weights to a temporary file: {error}. "
                "Nothing was written."
            ) from error
        return MappedArray.of(region, place - start, values.shape, values.dtype)

    def close(self) -> None:
        """Close the file. Arrays over the file stay valid."""
        for key in [*self._lent]:
            self._take_back(key)
        self._file.close()

    def _take_back(self, key: int) -> None:
        entry = self._lent.pop(key, None)
        if entry is not None:
            source, _ = entry
            # Remaining users of the tensor are safe, because its pages are read again.
            source.release_around()
            self._trim(source.nbytes)

    def _trim(self, size: int) -> None:
        # Results computed from a value are freed all over the heap. For codes they took
        # up to eight times the size of the value.
        self._bytes_freed += size
        if self._bytes_freed >= MOST_LENT_BYTES // 4:
            self._bytes_freed = 0
            trim_heap()

    def _room(self, size: int) -> tuple[mmap.mmap, int, int]:
        place, region = -(-self._end // _ALIGNMENT) * _ALIGNMENT, self._region
        if region is None or place + size > self._start + len(region):
            self._start, length = place, max(_REGION_BYTES, size)
            self._file.truncate(place + length)
            region = self._region = mmap.mmap(
                self._file.fileno(), length, access=self.access, offset=place
            )
        self._end = place + size
        return region, self._start, place


@contextmanager
def offloaded(values: LazyValues, folder: Path) -> Iterator[Offloaded]:
    """Return a context with files for variable values."""
    files = Offloaded(values, folder)
    try:
        yield files
    finally:
        files.close()


def _is_tensor(array: Any) -> bool:
    return isinstance(array, keras.Variable) or keras.ops.is_tensor(array)
