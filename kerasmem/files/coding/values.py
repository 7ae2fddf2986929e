"""Codes the entries of an array in the smallest of three forms.

- `_Raw`: uncompressed bytes.
- `_Bytes`: each byte position of the entries separately. For floats, only the byte with
  the sign and the exponent is compressible.
- `_Few`: a table of distinct entries and an index per entry.
"""

import math
from typing import Any

import numpy as np

from kerasmem.files.coding import rans
from kerasmem.files.coding.rans import MOST_SYMBOLS
from kerasmem.files.coding.stream import StreamReader, StreamWriter, damaged

_SAMPLE = 1 << 14
_WORTH_IT = 0.99


def some_of(entries: np.ndarray) -> np.ndarray:
    """Returns about 16,000 evenly spaced entries, or all if there are fewer."""
    # An even step would sample only some of the columns.
    return entries[:: entries.size // _SAMPLE | 1]


def plan(entries: np.ndarray) -> Any:
    """Returns the smallest form of unsigned entries, with `coded_bytes` and `write`."""
    forms: list[Any] = [_Raw(entries)]
    if entries.size:
        if entries.itemsize > 1:  # otherwise `_Few` is equivalent
            forms.append(_Bytes(entries))
        if (few := _Few.of(entries)) is not None:
            forms.append(few)
    return min(forms, key=lambda form: form.coded_bytes)


def read(source: StreamReader, dtype: np.dtype, count: int) -> np.ndarray:
    """Returns the entries written by a form, of shape (entries,)."""
    number = source.number()
    if number >= len(_FORMS):
        raise damaged("unknown form")
    return _FORMS[number].read(source, dtype, count)


class _Raw:
    def __init__(self, entries: np.ndarray) -> None:
        self._entries = entries
        self.coded_bytes = entries.nbytes

    def write(self, out: StreamWriter) -> None:
        out.number(_FORMS.index(_Raw))
        out.raw(self._entries.tobytes())

    @classmethod
    def read(cls, source: StreamReader, dtype: np.dtype, count: int) -> np.ndarray:
        return source.array(dtype, count).copy()


class _Bytes:
    def __init__(self, entries: np.ndarray) -> None:
        self._raw = entries.view(np.uint8).reshape(entries.size, -1).T
        self._planes = [
            rans.Symbols(plane, 256) if _seems_uneven(plane) else None
            for plane in self._raw
        ]
        self.coded_bytes = sum(
            min(plane.coded_bytes if plane else math.inf, entries.size)
            for plane in self._planes
        )

    def write(self, out: StreamWriter) -> None:
        out.number(_FORMS.index(_Bytes))
        for plane, raw in zip(self._planes, self._raw, strict=True):
            if plane is not None and plane.coded_bytes < _WORTH_IT * raw.size:
                out.number(1)
                plane.write(out)
            else:
                out.number(0)
                out.raw(raw.tobytes())

    @classmethod
    def read(cls, source: StreamReader, dtype: np.dtype, count: int) -> np.ndarray:
        planes = np.empty((count, dtype.itemsize), np.uint8)
        for place in range(dtype.itemsize):
            if source.number():
                planes[:, place] = rans.read(source, count, 256)
            else:
                planes[:, place] = source.array(np.dtype(np.uint8), count)
        return planes.reshape(-1).view(dtype)


class _Few:
    def __init__(self, different: np.ndarray, indices: np.ndarray) -> None:
        self._different = different
        self._symbols = rans.Symbols(indices, different.size)
        self.coded_bytes = self._symbols.coded_bytes + different.nbytes

    @classmethod
    def of(cls, entries: np.ndarray) -> "_Few | None":
        """Returns the form, or `None` with too many distinct entries."""
        if entries.dtype.itemsize <= 2:
            come = np.bincount(entries, minlength=1) > 0
            different = np.flatnonzero(come).astype(entries.dtype)
            indices = (np.cumsum(come) - 1).astype(entries.dtype)[entries]
        elif _seem_many(entries):
            return None
        else:
            different, indices = np.unique(entries, return_inverse=True)
        return cls(different, indices) if different.size <= MOST_SYMBOLS else None

    def write(self, out: StreamWriter) -> None:
        out.number(_FORMS.index(_Few))
        out.number(self._different.size)
        out.raw(self._different.tobytes())
        self._symbols.write(out)

    @classmethod
    def read(cls, source: StreamReader, dtype: np.dtype, count: int) -> np.ndarray:
        number = source.number()
        if not 0 < number <= MOST_SYMBOLS:
            raise damaged("invalid number")
        different = source.array(dtype, number)
        return different[rans.read(source, count, number)]


def _seems_uneven(plane: np.ndarray) -> bool:
    counts = np.bincount(some_of(plane), minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return bool(-(shares * np.log2(shares)).sum() < 8 * _WORTH_IT)


def _seem_many(entries: np.ndarray) -> bool:
    """Returns whether a sample indicates too many distinct entries.

    The number is estimated from entries that occur once or twice: Chao, "Nonparametric
    estimation of the number of classes in a population", 1984.
    """
    _, counts = np.unique(some_of(entries), return_counts=True)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return counts.size + once**2 / (2 * (twice + 1)) > 2 * MOST_SYMBOLS


_FORMS: list[Any] = [_Raw, _Bytes, _Few]
