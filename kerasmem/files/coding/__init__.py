"""An array as a few bytes, and back to the bit.

The most frequent entry, a pruned weight's zero, may be left out; then the positions of
the others come first. What is left is written as `values` does it.
"""

import math
import re

import numpy as np

from kerasmem.files.coding import positions, values
from kerasmem.files.coding.stream import StreamReader, StreamWriter, damaged
from kerasmem.files.deflating import crc32

_MAGIC = b"KMC1"
_ALL, _SOME, _ALIKE = range(3)
"""All entries follow, or those unlike the most frequent one, or there are no others."""

LARGE_BYTES, MOST_TIMES = 1 << 30, 1000
"""An array so large that was so much smaller in the file was never a weight."""

_FAR = 0.8
"""Below that share of what a sample tells, all entries need not be looked at."""

_MOST_AXES = 32
_NAME_OF_TYPE = re.compile(rb"[<>|][biufV][1248]")


def has_code(dtype: np.dtype) -> bool:
    """Return whether arrays of a type can be coded: numbers of 1, 2, 4 or 8 bytes."""
    return dtype.kind in "biufV" and dtype.itemsize in (1, 2, 4, 8)


def encode(array: np.ndarray) -> bytes:
    """Return the bytes that `decode` makes the array of again, to the bit.

    Args:
        array: of any shape; an entry has 1, 2, 4 or 8 bytes.
    """
    entries = _as_integers(array)
    out = StreamWriter()
    out.block(np.dtype(array.dtype.str).str.encode())  # bfloat16 is just two bytes
    out.number(array.ndim)
    for length in array.shape:
        out.number(length)
    _write(entries, array.shape, out)
    content = out.content()
    return _MAGIC + crc32(content).to_bytes(4, "little") + content


def decode(content: bytes | memoryview, most_bytes: int | None = None) -> np.ndarray:
    """Return the array that `encode` was given.

    Args:
        content: what `encode` returned.
        most_bytes: that the array may have; None for what any file may hold.

    Raises:
        ModelFileError: if the content is damaged.
    """
    content = memoryview(content)
    if content[:4] != _MAGIC:
        raise damaged("it does not begin as it should")
    if crc32(content[8:]) != int.from_bytes(content[4:8], "little"):
        raise damaged("its checksum does not fit")
    source = StreamReader(content[8:])
    shape, dtype = _read_form(source)
    # An axis of 0 counts as 1: the others are made room for all the same.
    size = math.prod(max(length, 1) for length in shape) * dtype.itemsize
    if most_bytes is None:
        most_bytes = max(LARGE_BYTES, MOST_TIMES * len(content))
    if size > most_bytes:
        raise damaged("it tells a size that cannot be")
    entries = _read(source, _integers(dtype), shape)
    source.finish()
    return entries.view(dtype).reshape(shape)


def coded_form(beginning: bytes) -> tuple[tuple[int, ...], np.dtype] | None:
    """Return the shape and the type of a coded array, None if it is none.

    Args:
        beginning: its first bytes, 400 of them if there are so many.
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
    some = values.some_of(entries).copy()
    about_bytes = values.plan(some).coded_bytes * entries.size / some.size
    whole = None if apart_bytes < _FAR * about_bytes else values.plan(entries)
    out.whole_bytes = min(apart_bytes, whole.coded_bytes if whole else math.inf)
    if whole is None or apart_bytes < whole.coded_bytes:
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
        raise damaged("its form is not known")
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
        raise damaged("it tells a size that cannot be")
    return tuple(source.number() for _ in range(axes)), dtype


def _read_dtype(source: StreamReader) -> np.dtype:
    name = bytes(source.block())
    if not _NAME_OF_TYPE.fullmatch(name):  # NumPy warns of some names
        raise damaged("its type is not known")
    try:
        dtype = np.dtype(name.decode())
    except (TypeError, ValueError) as error:
        raise damaged("its type is not known") from error
    if not has_code(dtype) or dtype.str.encode() != name:
        raise damaged("its type is not known")
    return dtype


def _integers(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"<u{dtype.itemsize}")


def _as_integers(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(_integers(array.dtype))
