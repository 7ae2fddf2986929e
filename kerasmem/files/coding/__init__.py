"""Lossless entropy coding of arrays.

The most frequent entry, such as the zero of a pruned weight, may be omitted. In this
case, the positions of the other entries come first. The module `values` codes the
remaining entries.
"""

import math
import re

import numpy as np

from kerasmem.files.coding import positions, values
from kerasmem.files.coding.stream import StreamReader, StreamWriter, damaged
from kerasmem.files.deflating import crc32

_MAGIC = b"KMC1"
_ALL, _SOME, _ALIKE = range(3)
"""Modes: all entries, only the entries other than the most frequent, or a constant
array."""

LARGE_BYTES, MOST_TIMES = 1 << 30, 1000
"""Size and ratio from which an array is rejected as a decompression bomb."""

_MOST_AXES = 32
_NAME_OF_TYPE = re.compile(rb"[<>|][biufV][1248]")


def has_code(dtype: np.dtype) -> bool:
    """Returns whether a data type can be coded: numbers of 1, 2, 4 or 8 bytes."""
    return dtype.kind in "biufV" and dtype.itemsize in (1, 2, 4, 8)


def encode(array: np.ndarray) -> bytes:
    """Returns the code of an array whose entries have 1, 2, 4 or 8 bytes."""
    entries = _as_integers(array)
    out = StreamWriter()
    out.block(np.dtype(array.dtype.str).str.encode())  # raw bytes for bfloat16
    out.number(array.ndim)
    for length in array.shape:
        out.number(length)
    _write(entries, array.shape, out)
    content = out.content()
    return _MAGIC + crc32(content).to_bytes(4, "little") + content


def decode(content: bytes | memoryview, most_bytes: int | None = None) -> np.ndarray:
    """Returns the array for a code of `encode`, equal bit by bit.

    Raises `ModelFileError` if the code is damaged, or the array is larger than
    `most_bytes` or a limit based on the code size.
    """
    content = memoryview(content)
    if content[:4] != _MAGIC:
        raise damaged("invalid header")
    if crc32(content[8:]) != int.from_bytes(content[4:8], "little"):
        raise damaged("the checksum does not match")
    source = StreamReader(content[8:])
    shape, dtype = _read_form(source)
    # An axis of 0 counts as 1, because memory is allocated for the other axes.
    size = math.prod(max(length, 1) for length in shape) * dtype.itemsize
    if most_bytes is None:
        most_bytes = max(LARGE_BYTES, MOST_TIMES * len(content))
    if size > most_bytes:
        raise damaged("invalid size")
    entries = _read(source, _integers(dtype), shape)
    source.finish()
    return entries.view(dtype).reshape(shape)


def coded_form(beginning: bytes) -> tuple[tuple[int, ...], np.dtype] | None:
    """Returns the shape and type of an array from the first 400 bytes of its code.

    Returns `None` without a code.
    """
    return _read_form(StreamReader(beginning[8:])) if beginning[:4] == _MAGIC else None


def _write(entries: np.ndarray, shape: tuple[int, ...], out: StreamWriter) -> None:
    common = _most_frequent(entries)
    if common is None:
        out.number(_ALL)
        values.plan(entries).write(out)
        return
    full = entries != common
    if not full.any():
        out.number(_ALIKE)
        out.raw(common.tobytes())
        return
    where, rest = positions.plan(full, shape), values.plan(entries[full])
    apart_bytes = where.coded_bytes + rest.coded_bytes
    whole = values.plan(entries)
    out.whole_bytes = min(apart_bytes, whole.coded_bytes)
    if apart_bytes < whole.coded_bytes:
        out.number(_SOME)
        out.raw(common.tobytes())
        where.write(out)
        rest.write(out)
    else:
        out.number(_ALL)
        whole.write(out)


def _read(source: StreamReader, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = math.prod(shape)
    how = source.number()
    if how == _ALL:
        return values.read(source, dtype, size)
    entries = np.repeat(source.array(dtype, 1), size)
    if how == _SOME:
        full = positions.read(shape, source)
        entries[full] = values.read(source, dtype, int(full.sum()))
    elif how != _ALIKE:
        raise damaged("unknown form")
    return entries


def _most_frequent(entries: np.ndarray) -> np.ndarray | None:
    sample = values.some_of(entries)
    if not sample.size:
        return None
    different, counts = np.unique(sample, return_counts=True)
    often = counts.max() > max(sample.size // 8, 1)
    return different[[counts.argmax()]] if often else None


def _read_form(source: StreamReader) -> tuple[tuple[int, ...], np.dtype]:
    dtype, axes = _read_dtype(source), source.number()
    if axes > _MOST_AXES:
        raise damaged("invalid size")
    return tuple(source.number() for _ in range(axes)), dtype


def _read_dtype(source: StreamReader) -> np.dtype:
    name = bytes(source.block())
    if not _NAME_OF_TYPE.fullmatch(name):  # NumPy issues warnings for some names
        raise damaged("unknown type")
    try:
        dtype = np.dtype(name.decode())
    except (TypeError, ValueError) as error:
        raise damaged("unknown type") from error
    if not has_code(dtype) or dtype.str.encode() != name:
        raise damaged("unknown type")
    return dtype


def _integers(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"<u{dtype.itemsize}")


def _as_integers(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(_integers(array.dtype))
