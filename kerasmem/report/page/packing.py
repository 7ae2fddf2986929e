"""Columns of numbers for a page: exact, typed, compressed, and safe inside of HTML.

The text is base64 of a zlib stream: 4 bytes with the length of a JSON header, the
header, then the columns, each at a multiple of 8 bytes. `unpack.js` reads it.
"""

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_WHOLE = (np.uint8, np.uint16, np.uint32, np.int8, np.int16, np.int32)
_ALIGNMENT = 8
_KEPT_BITS = 12  # of a float32's 23: four significant digits


class Packer:
    """Collects columns; what it returns for each stands for it in the content."""

    def __init__(self) -> None:
        self._columns: list[dict[str, Any]] = []
        self._bytes = bytearray()

    def whole(self, values: Sequence[int], *, rising: bool = False) -> dict[str, int]:
        """Return the reference of a column of whole numbers, exact up to 2**53.

        Args:
            values: the numbers.
            rising: whether the step from one number to the next is mostly small;
                then the steps are what is stored.
        """
        column = np.asarray(values, np.int64)
        steps = np.diff(column, prepend=0) if rising else column
        return self._add(_narrow(steps), rising=rising)

    def place(self, values: Sequence[float]) -> dict[str, int]:
        """Return the reference of a column of numbers, kept to seven digits."""
        return self._add(_as_float32(values), rising=False)

    def real(self, values: Sequence[float] | np.ndarray) -> dict[str, int]:
        """Return the reference of a column of numbers, kept to four digits."""
        column = _as_float32(values).reshape(-1)
        bits = column.view(np.uint32)
        dropped = np.uint32(23 - _KEPT_BITS)
        rounded = (bits + (np.uint32(1) << (dropped - np.uint32(1)))) >> dropped
        kept = np.where(np.isfinite(column), rounded << dropped, bits)
        return self._add(kept.astype(np.uint32).view(np.float32), rising=False)

    def pack(self, content: Mapping[str, Any]) -> str:
        """Return the content and every column as one text without `<`, `>` or `&`."""
        header = json.dumps({"content": content, "columns": self._columns}).encode()
        padding = b" " * (-(4 + len(header)) % _ALIGNMENT)
        length = struct.pack("<I", len(header) + len(padding))
        whole = length + header + padding + bytes(self._bytes)
        return base64.b64encode(zlib.compress(whole, 9)).decode("ascii")

    def _add(self, column: np.ndarray, *, rising: bool) -> dict[str, int]:
        data = column.astype(column.dtype.newbyteorder("<")).tobytes()
        kind = column.dtype.name
        at, length = len(self._bytes), len(column)
        self._columns.append(
            {"type": kind, "at": at, "length": length, "rising": rising}
        )
        self._bytes += data + bytes(-len(data) % _ALIGNMENT)
        return {"column": len(self._columns) - 1}


def _as_float32(values: Sequence[float] | np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinite is what a chart leaves out
        return np.asarray(values, np.float32)


def _narrow(column: np.ndarray) -> np.ndarray:
    """Return whole numbers in the smallest type that holds them all."""
    if not len(column):
        return column.astype(np.uint8)
    low, high = column.min(), column.max()
    for kind in _WHOLE:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return column.astype(kind)
    return column.astype(np.float64)
