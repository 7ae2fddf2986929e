"""Chunked HDF5 arrays, deflated on several threads.

Each chunk is a contiguous run of the array's entries, so that arrays can be written and
read block by block. Any HDF5 library can read the files.
"""

import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from h5py import h5f, h5g, h5p

from kerasmem.errors import OutputError
from kerasmem.files.deflating import better_shuffled, crc32, deflated, inflated
from kerasmem.files.threads import Threads, in_order

_PIECE_BYTES = 1 << 20
_LEAST_BYTES = 1 << 9
"""Smaller arrays are stored uncompressed."""

MOST_UNSTORED_BYTES = 1 << 32
"""Size from which Keras rejects an array without stored data."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NOTHING = np.empty(0, np.uint8)
Place = tuple[int, ...]
Form = tuple[tuple[int, ...], np.dtype]
_Packed = tuple[bytes, bool, int]
"""Bytes of a chunk, whether they are uncompressed, and their checksum."""


@dataclass
class WrittenArray:
    """An array written to a file.

    `sums` contains a CRC-32 per chunk, or `None` for a chunk of zeros without stored
    data. An array without chunks has a single CRC-32.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    sums: list[Any] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return math.prod(self.shape) * self.dtype.itemsize


def new_file(path: Path) -> h5py.File:
    """Creates an HDF5 file in the compact format of HDF5 1.10 and later.

    Older formats take some KiB per array for the chunk index.
    """
    settings = h5p.create(h5p.FILE_CREATE)
    settings.set_obj_track_times(False)
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    return h5py.File(h5f.create(os.fsencode(path), h5f.ACC_TRUNC, settings, access))


def new_group(parent: h5py.Group, name: str) -> h5py.Group:
    """Creates a group without a timestamp, so that files are reproducible."""
    settings = h5p.create(h5p.GROUP_CREATE)
    settings.set_obj_track_times(False)
    return h5py.Group(h5g.create(parent.id, name.encode(), None, settings))


def write_array(
    threads: Threads,
    group: h5py.Group,
    name: str,
    form: Form,
    blocks: Iterable[np.ndarray],
) -> WrittenArray:
    """Writes a numeric array in the format that Keras reads.

    The result depends only on the array, not on the division into blocks. A yielded
    block must not be modified until the scope of `threads` ends. The data and the
    checksums are complete at this point.

    Raises `OutputError` if the blocks have fewer or more entries than the array.
    """
    shape, dtype = form
    if not shape or math.prod(shape) * dtype.itemsize < _LEAST_BYTES:
        return write_whole(group, name, form, blocks)
    record, width = WrittenArray(shape, dtype), dtype.itemsize
    chunks = chunks_of(shape, width)
    pieces = _pieces(name, form, blocks)
    first = next(pieces)
    shuffle = better_shuffled(first[1], width)
    dataset = group.create_dataset(
        name,
        shape,
        type_in_file(dtype),
        chunks=chunks,
        compression="gzip",
        shuffle=shuffle,
    )
    note_type(dataset, dtype)
    # Keras rejects an array of this size without stored data.
    keeps_zeros = record.nbytes > MOST_UNSTORED_BYTES
    pack = partial(_packed, keeps_zeros=keeps_zeros)
    form_of_piece = width if shuffle else 1, math.prod(chunks) * width
    filter_mask = 0b11 if shuffle else 0b1
    for place, piece in chain([first], pieces):
        write = partial(_write, dataset, record.sums, place, filter_mask)
        threads.run(pack, piece, *form_of_piece, then=write)
    return record


def write_plain(
    group: h5py.Group, name: str, form: Form, blocks: Iterable[np.ndarray]
) -> WrittenArray:
    """Writes an array contiguously. See `write_array`.

    No data is stored for an array of zeros.
    """
    shape, dtype = form
    if not (shape and math.prod(shape)):
        return write_whole(group, name, form, blocks)
    record = WrittenArray(shape, dtype)
    dataset = group.create_dataset(name, shape, type_in_file(dtype))
    note_type(dataset, dtype)
    lengths = chunks_of(shape, dtype.itemsize)
    crc, zeros = 0, list[tuple[Place, int]]()
    is_stored = record.nbytes > MOST_UNSTORED_BYTES

    def put(place: Place, piece: np.ndarray) -> None:
        entries = piece.view(dataset.dtype)
        dataset[_slices(place, lengths)] = entries.reshape(
            np.minimum(lengths, np.subtract(shape, place))
        )

    for place, piece in _pieces(name, form, blocks):
        crc = checksum(piece, crc)
        if not (is_stored or piece.any()):
            zeros.append((place, piece.size))
            continue
        # HDF5 allocates the whole array without clearing it.
        for before, size in zeros:
            put(before, np.zeros(size, np.uint8))
        is_stored, zeros = True, []
        put(place, piece)
    record.sums.append(crc)
    return record


def _write(
    dataset: h5py.Dataset,
    sums: list[int | None],
    place: Place,
    unfiltered: int,
    packed: _Packed | None,
) -> None:
    if packed is None:
        sums.append(None)
        return
    content, is_plain, crc = packed
    dataset.id.write_direct_chunk(place, content, unfiltered if is_plain else 0)
    sums.append(crc)


def _packed(
    piece: np.ndarray, width: int, size: int, *, keeps_zeros: bool
) -> _Packed | None:
    if not keeps_zeros and not piece.any():
        return None
    crc = checksum(piece)
    if piece.size < size:  # the last HDF5 chunk extends beyond the array
        piece = np.concatenate([piece, np.zeros(size - piece.size, np.uint8)])
    stream = deflated(piece, width)
    if stream is None:
        return piece.tobytes(), True, crc
    return stream, False, crc


def is_as_written(dataset: h5py.Dataset, written: WrittenArray) -> bool:
    """Returns whether an array in a file equals the written array."""
    if dataset.chunks is None:
        crc = 0
        for block in blocks_of(dataset):
            crc = checksum(block, crc)
        return [crc] == written.sums
    call_all = map if len(written.sums) == 1 else in_order  # no threads for one chunk
    return all(call_all(operator.call, _chunk_checks(dataset, written.sums)))


def _chunk_checks(
    dataset: h5py.Dataset, sums: list[int | None]
) -> Iterator[Callable[[], bool]]:
    """Yields a check for each chunk. HDF5 is not thread-safe, so chunks are read here.

    Chunks are inflated on other threads by libdeflate, which is faster than the filters
    of HDF5.
    """
    itemsize = dataset.dtype.itemsize
    width = itemsize if dataset.shuffle else 1
    size = math.prod(dataset.chunks) * itemsize
    no_filters = 0b11 if dataset.shuffle else 0b1
    for place, crc in zip(dataset.iter_chunks(), sums, strict=True):
        if crc is None:
            yield partial(operator.not_, dataset[place].any())
            continue
        mask, content = dataset.id.read_direct_chunk([part.start for part in place])
        if mask not in (0, no_filters):
            yield partial(bool)
            continue
        nbytes = math.prod(part.stop - part.start for part in place) * itemsize
        form = None if mask else (width, size)
        yield partial(_has_checksum, content, form, nbytes, crc)


def _has_checksum(
    content: bytes, form: tuple[int, int] | None, nbytes: int, crc: int
) -> bool:
    piece = content if form is None else inflated(content, *form)
    return checksum(np.frombuffer(piece, np.uint8, nbytes)) == crc


def blocks_of(dataset: h5py.Dataset) -> Iterator[np.ndarray]:
    """Yields an array in a file in blocks of about 1 MiB."""
    if not dataset.shape or not dataset.size:
        yield np.asarray(dataset[()], dataset.dtype)
        return
    lengths = chunks_of(dataset.shape, dataset.dtype.itemsize)
    for place, _ in _places(dataset.shape, lengths):
        yield dataset[_slices(place, lengths)]


def chunks_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Returns the chunk shape: a contiguous run of about 1 MiB."""
    axis, size = len(shape), itemsize
    while axis and size * shape[axis - 1] <= _PIECE_BYTES:
        axis -= 1
        size *= shape[axis]
    if not axis:
        return shape
    length = shape[axis - 1]
    number = math.ceil(length / max(_PIECE_BYTES // size, 1))
    return (*(1 for _ in shape[: axis - 1]), math.ceil(length / number), *shape[axis:])


def _places(
    shape: tuple[int, ...], chunks: tuple[int, ...]
) -> Iterator[tuple[Place, int]]:
    axis = next((n for n, length in enumerate(chunks) if length > 1), len(shape) - 1)
    row = math.prod(shape[axis + 1 :])
    behind = tuple(0 for _ in shape[axis + 1 :])
    for outer in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], chunks[axis]):
            entries = min(chunks[axis], shape[axis] - start) * row
            yield (*outer, start, *behind), entries


def _slices(place: Place, lengths: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(map(slice, place, np.add(place, lengths)))


def _pieces(
    name: str, form: Form, blocks: Iterable[np.ndarray]
) -> Iterator[tuple[Place, np.ndarray]]:
    (shape, dtype), source, rest = form, map(bytes_of, blocks), _NOTHING
    for place, entries in _places(shape, chunks_of(shape, dtype.itemsize)):
        length = entries * dtype.itemsize
        parts, size = [rest], rest.size
        while size < length:
            part = next(source, None)
            if part is None:
                raise other_length(name)
            parts.append(part)
            size += part.size
        full = [part for part in parts if part.size]
        rest = full[0] if len(full) == 1 else np.concatenate(full)
        yield place, rest[:length]
        rest = rest[length:]
    if rest.size or any(part.size for part in source):
        raise other_length(name)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def checksum(array: np.ndarray, before: int = 0) -> int:
    """Returns the CRC-32 of an array, continued from `before`."""
    return crc32(bytes_of(array).data, before)


def write_whole(
    group: h5py.Group,
    name: str,
    form: Form,
    blocks: Iterable[np.ndarray],
) -> WrittenArray:
    """Writes an array contiguously. See `write_array`."""
    shape, dtype = form
    content = whole_of(name, form, blocks)
    dataset = group.create_dataset(name, data=content)
    note_type(dataset, dtype)
    return WrittenArray(shape, dtype, [checksum(content)])


def whole_of(name: str, form: Form, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Concatenates blocks to an array of a data type known to HDF5."""
    shape, dtype = form
    parts = [bytes_of(block) for block in blocks]
    content = parts[0] if len(parts) == 1 else np.concatenate([_NOTHING, *parts])
    if content.size != math.prod(shape) * dtype.itemsize:
        raise other_length(name)
    return content.view(type_in_file(dtype)).reshape(shape)


def type_in_file(dtype: np.dtype) -> Any:
    """Returns the HDF5 data type of an array: raw bytes for bfloat16."""
    return np.dtype("V2") if dtype == _BFLOAT16 else dtype


def type_of(dataset: h5py.Dataset) -> np.dtype:
    """Returns the data type of a dataset, including bfloat16. See `note_type`."""
    is_bfloat16 = (
        dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2
    )
    return _BFLOAT16 if is_bfloat16 else dataset.dtype


def note_type(dataset: h5py.Dataset, dtype: np.dtype) -> None:
    """Records bfloat16 in an attribute, as Keras does."""
    if dtype == _BFLOAT16:
        dataset.attrs["dtype"] = "bfloat16"


def not_read_back(name: str) -> OutputError:
    """Returns the error for a weight whose stored value differs."""
    return OutputError(f"the stored value of the weight {name!r} differs")


def other_length(name: str) -> OutputError:
    """Returns the error for an array whose blocks do not match its shape."""
    return OutputError(f"the length of the weight {name!r} does not match its shape")
