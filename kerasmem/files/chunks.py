"""Arrays in an HDF5 file in pieces, each deflated by itself, on several threads.

HDF5 calls a piece a chunk. Here each is a run of the array's entries as they follow
each other, so that an array can come, or go, a block at a time. Any HDF5 reads them.
"""

import math
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from h5py import h5f, h5g, h5p

from kerasmem.errors import OutputError
from kerasmem.files.deflating import better_shuffled, deflated, inflated
from kerasmem.files.threads import Threads

_PIECE_BYTES = 1 << 20
_BLOCK_BYTES = 4 * _PIECE_BYTES
_LEAST_BYTES = 1 << 9
"""A smaller array takes less as it is."""

MOST_UNSTORED_BYTES = 1 << 32
"""Keras refuses a larger array of which the file has nothing."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
Place = tuple[int, ...]
Form = tuple[tuple[int, ...], np.dtype]
_Packed = tuple[bytes, bool]
"""Bytes of a chunk, and whether they are the entries as they are."""


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
) -> h5py.Dataset:
    """Write an array of numbers under a name, as Keras reads it.

    What is written depends on the array alone, not on how it was cut into blocks. It is
    all there when the scope of the threads ends.

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
        return _write_whole(group, name, form, blocks)
    chunks = chunks_of(shape, dtype.itemsize)
    width, size = dtype.itemsize, math.prod(chunks) * dtype.itemsize
    places = list(_places(shape, chunks))
    pieces = _cut(blocks, [entries * width for _, entries in places], name)
    first = next(pieces)
    shuffle = better_shuffled(first, width)
    made = group.create_dataset(
        name,
        shape,
        _in_file(dtype),
        chunks=chunks,
        compression="gzip",
        shuffle=shuffle,
    )
    _note_type(made, dtype)
    # Keras would take so large an array without a piece for a trap.
    pack = (
        _packed
        if math.prod(shape) * width > MOST_UNSTORED_BYTES
        else _packed_unless_zero
    )
    unfiltered = 0b11 if shuffle else 0b1
    for number, (place, _) in enumerate(places):
        piece = first if number == 0 else next(pieces)
        threads.run(
            pack,
            piece,
            width if shuffle else 1,
            size,
            then=partial(_write, made, place, unfiltered),
        )
    for _ in pieces:
        raise _other_length(name)
    return made


def _write(
    dataset: h5py.Dataset, place: Place, unfiltered: int, packed: _Packed | None
) -> None:
    if packed is not None:
        content, is_plain = packed
        dataset.id.write_direct_chunk(place, content, unfiltered if is_plain else 0)


def _packed_unless_zero(piece: np.ndarray, width: int, size: int) -> _Packed | None:
    """Return what `_packed` does, None for zeros, of which nothing is written."""
    return _packed(piece, width, size) if piece.any() else None


def _packed(piece: np.ndarray, width: int, size: int) -> _Packed:
    if piece.size < size:  # at an end of the array, HDF5's chunk reaches over it
        piece = np.concatenate([piece, np.zeros(size - piece.size, np.uint8)])
    stream = deflated(piece, width)
    return (piece.tobytes(), True) if stream is None else (stream, False)


def check_array(
    threads: Threads,
    dataset: h5py.Dataset,
    name: str,
    form: Form,
    blocks: Iterable[np.ndarray],
) -> None:
    """Read an array that `write_array` wrote in pieces, and compare it bit by bit.

    Args:
        threads: that inflate and compare the pieces.
        dataset: it.
        name: of the array, for the error.
        form: the shape and the type that it should have.
        blocks: the entries that it should have.

    Raises:
        OutputError: if it differs, here or when the scope of the threads ends.
    """
    shape, dtype = form
    if dataset.shape != shape or dataset.dtype != _in_file(dtype):
        raise _unlike(name)
    width, how = dtype.itemsize, dtype.itemsize if dataset.shuffle else 1
    size = math.prod(dataset.chunks) * width
    places = list(_places(shape, dataset.chunks))
    pieces = _cut(blocks, [entries * width for _, entries in places], name)

    def judge(same: bool) -> None:  # noqa: FBT001
        if not same:
            raise _unlike(name)

    for (place, _), piece in zip(places, pieces, strict=True):
        if dataset.id.get_chunk_info_by_coord(place).byte_offset is None:
            judge(not piece.any())
            continue
        mask, content = dataset.id.read_direct_chunk(place)
        args = (piece, content, 0 if mask else how, size)
        threads.run(_is_same, *args, then=judge)


def blocks_of(dataset: h5py.Dataset) -> Iterator[np.ndarray]:
    """Give an array in a file, some MiB at a time; all of it where a row is larger."""
    if not dataset.shape:
        yield np.asarray(dataset[()])
        return
    row = dataset.nbytes // max(dataset.shape[0], 1)
    step = max(_BLOCK_BYTES // max(row, 1), 1)
    for start in range(0, dataset.shape[0], step):
        yield dataset[start : start + step]


def _is_same(piece: np.ndarray, content: bytes, width: int, size: int) -> bool:
    if not width:
        found = np.frombuffer(content, np.uint8)
    else:
        try:
            found = inflated(content, width, size)
        except ValueError:
            return False
    return found.size == size and np.array_equal(found[: piece.size], piece)


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
    """Give the first place of every piece, in their order, and its entries."""
    axis = next((n for n, length in enumerate(chunks) if length > 1), len(shape) - 1)
    row = math.prod(shape[axis + 1 :])
    behind = tuple(0 for _ in shape[axis + 1 :])
    for outer in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], chunks[axis]):
            entries = min(chunks[axis], shape[axis] - start) * row
            yield (*outer, start, *behind), entries


def _cut(
    blocks: Iterable[np.ndarray], lengths: list[int], name: str
) -> Iterator[np.ndarray]:
    """Give the bytes of blocks anew, in pieces of so many, and any that are left."""
    source = map(_bytes, blocks)
    rest = np.empty(0, np.uint8)
    for length in lengths:
        parts, size = [rest], rest.size
        while size < length:
            part = next(source, None)
            if part is None:
                raise _other_length(name)
            parts.append(part)
            size += part.size
        full = [part for part in parts if part.size]
        rest = full[0] if len(full) == 1 else np.concatenate(full)
        yield rest[:length]
        rest = rest[length:]
    yield from (part for part in (rest, *source) if part.size)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _write_whole(
    group: h5py.Group,
    name: str,
    form: Form,
    blocks: Iterable[np.ndarray],
) -> h5py.Dataset:
    shape, dtype = form
    size = math.prod(shape) * dtype.itemsize
    parts = [_bytes(block) for block in blocks]
    content = np.concatenate([np.empty(0, np.uint8), *parts])
    if content.size != size:
        raise _other_length(name)
    array = content.view(_in_file(dtype)).reshape(shape)
    made = group.create_dataset(name, data=array)
    _note_type(made, dtype)
    return made


def _in_file(dtype: np.dtype) -> Any:
    """Return the type of entries that HDF5 has a name for."""
    return np.dtype("V2") if dtype == _BFLOAT16 else dtype


def _note_type(dataset: h5py.Dataset, dtype: np.dtype) -> None:
    if dtype == _BFLOAT16:  # as Keras does
        dataset.attrs["dtype"] = "bfloat16"


def _other_length(name: str) -> OutputError:
    return OutputError(f"the weight {name!r} has another length than its shape tells")


def _unlike(name: str) -> OutputError:
    return OutputError(f"the weight {name!r} was not read back as it was written")
