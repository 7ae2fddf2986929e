"""Arrays in an HDF5 file in pieces, each deflated by itself, on several threads.

HDF5 calls a piece a chunk. Here each is a run of the array's entries as they follow
each other, so that an array can come, or go, a block at a time. Any HDF5 reads them.
"""

import math
import os
from collections.abc import Iterable, Iterator
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
from kerasmem.files.deflating import better_shuffled, crc32, deflated
from kerasmem.files.threads import Threads

_PIECE_BYTES = 1 << 20
_LEAST_BYTES = 1 << 9
"""A smaller array takes less as it is."""

MOST_UNSTORED_BYTES = 1 << 32
"""Keras refuses a larger array of which the file has nothing."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_NOTHING = np.empty(0, np.uint8)
Place = tuple[int, ...]
Form = tuple[tuple[int, ...], np.dtype]
_Packed = tuple[bytes, bool, int]
"""Bytes of a chunk, whether they are the entries as they are, and their checksum."""


@dataclass
class WrittenArray:
    """An array in a file, as it was written.

    Args:
        shape: its shape.
        dtype: type of an entry.
        sums: CRC-32 of the entries of each chunk, in order, None for one of zeros that
            the file has nothing of; of all entries where there are no chunks.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    sums: list[Any] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return math.prod(self.shape) * self.dtype.itemsize


def new_file(path: Path) -> h5py.File:
    """Return a new HDF5 file in the short forms that HDF5 1.10 and later reads.

    The older ones take some KiB for the pieces of each array, however few.
    """
    settings = h5p.create(h5p.FILE_CREATE)
    settings.set_obj_track_times(False)
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    return h5py.File(h5f.create(os.fsencode(path), h5f.ACC_TRUNC, settings, access))


def new_group(parent: h5py.Group, name: str) -> h5py.Group:
    """Return a new group, without the time: what is written is the same tomorrow."""
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
    """Write an array of numbers under a name, as Keras reads it.

    What is written depends on the array alone, not on how it was cut into blocks. It is
    all there, and its checksums, when the scope of the threads ends.

    Args:
        threads: that deflate the pieces.
        group: of a file that is written.
        name: of the array in it.
        form: its shape and type.
        blocks: its entries in their order, in arrays of any length and shape. Their
            memory stays as it is until the scope ends, or `blocks` makes new ones.

    Raises:
        OutputError: if the blocks have fewer or more entries than the array.
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
    # Keras would take so large an array without a piece for a trap.
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
    """Write an array in one piece, as it is; nothing of one that is all zero.

    See `write_array`.
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
        # HDF5 makes room for the whole array, and leaves in it what was there.
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
    if piece.size < size:  # at an end of the array, HDF5's chunk reaches over it
        piece = np.concatenate([piece, np.zeros(size - piece.size, np.uint8)])
    stream = deflated(piece, width)
    if stream is None:
        return piece.tobytes(), True, crc
    return stream, False, crc


def is_as_written(dataset: h5py.Dataset, written: WrittenArray) -> bool:
    """Return whether an array in a file is what was written, as any reader reads it."""
    if dataset.chunks is None:
        crc = 0
        for block in blocks_of(dataset):
            crc = checksum(block, crc)
        return [crc] == written.sums
    for place, crc in zip(dataset.iter_chunks(), written.sums, strict=True):
        piece = dataset[place]
        if piece.any() if crc is None else checksum(piece) != crc:
            return False
    return True


def blocks_of(dataset: h5py.Dataset) -> Iterator[np.ndarray]:
    """Yield an array in a file in runs of about a MiB."""
    if not dataset.shape or not dataset.size:
        yield np.asarray(dataset[()], dataset.dtype)
        return
    lengths = chunks_of(dataset.shape, dataset.dtype.itemsize)
    for place, _ in _places(dataset.shape, lengths):
        yield dataset[_slices(place, lengths)]


def chunks_of(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the pieces of an array, each about a MiB and a run of it.

    Args:
        shape: of the array, without an axis of 0.
        itemsize: bytes of an entry.
    """
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
    """Return the bytes of an array's entries in their order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def checksum(array: np.ndarray, before: int = 0) -> int:
    """Return the CRC-32 of an array's bytes, after that of what comes before them."""
    return crc32(bytes_of(array).data, before)


def write_whole(
    group: h5py.Group,
    name: str,
    form: Form,
    blocks: Iterable[np.ndarray],
) -> WrittenArray:
    """Write an array in one piece, as it is; see `write_array`."""
    shape, dtype = form
    content = whole_of(name, form, blocks)
    dataset = group.create_dataset(name, data=content)
    note_type(dataset, dtype)
    return WrittenArray(shape, dtype, [checksum(content)])


def whole_of(name: str, form: Form, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Return an array of the blocks of it, of the type that HDF5 has a name for.

    Raises:
        OutputError: if they have fewer or more entries.
    """
    shape, dtype = form
    parts = [bytes_of(block) for block in blocks]
    content = parts[0] if len(parts) == 1 else np.concatenate([_NOTHING, *parts])
    if content.size != math.prod(shape) * dtype.itemsize:
        raise other_length(name)
    return content.view(type_in_file(dtype)).reshape(shape)


def type_in_file(dtype: np.dtype) -> Any:
    """Return the type of entries that HDF5 has a name for."""
    return np.dtype("V2") if dtype == _BFLOAT16 else dtype


def type_of(dataset: h5py.Dataset) -> np.dtype:
    """Return the type of entries that a dataset stands for, see `note_type`."""
    is_bfloat16 = (
        dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2
    )
    return _BFLOAT16 if is_bfloat16 else dataset.dtype


def note_type(dataset: h5py.Dataset, dtype: np.dtype) -> None:
    """Note a type that HDF5 has no name for, as Keras does."""
    if dtype == _BFLOAT16:
        dataset.attrs["dtype"] = "bfloat16"


def not_read_back(name: str) -> OutputError:
    """Return the error of a weight that is not in the file as it was written."""
    return OutputError(f"the weight {name!r} was not read back as it was written")


def other_length(name: str) -> OutputError:
    """Return the error of an array whose blocks do not make its shape."""
    return OutputError(f"the weight {name!r} has another length than its shape tells")
