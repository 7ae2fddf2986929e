"""The arrays of an HDF5 file: where the entries of each lie, and one as a whole."""

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.chunks import type_of
from kerasmem.files.coding import LARGE_BYTES, MOST_TIMES


@dataclass(frozen=True)
class Dataset:
    """An array in a file.

    Args:
        name: its path in the file.
        shape: its shape.
        dtype: type of an entry.
        extents: the first byte and the number of bytes of each piece of it.
        plain: whether it is one piece of the entries as they are, or none: all zero.
        filtered: whether it is compressed by HDF5.
        shuffled: whether the bytes of entries are sorted by their place first.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    extents: tuple[tuple[int, int], ...]
    plain: bool
    filtered: bool
    shuffled: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the array in RAM."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def datasets(file: h5py.File) -> list[Dataset]:
    """Return the arrays in a file, each once, in the order of their paths."""
    found: list[Dataset] = []

    def keep(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(_described(name, item))

    file.visititems(keep)
    return found


def whole_array(
    dataset: Any, file: h5py.File, most_bytes: int | None = None
) -> np.ndarray:
    """Return the array in a dataset.

    Args:
        dataset: of a file.
        file: the file.
        most_bytes: that the array may have; None for what any file may hold.

    Raises:
        ModelFileError: if it is none, leads to another file, or is a bomb.
    """
    if not isinstance(dataset, h5py.Dataset):
        raise ModelFileError(f"{dataset.name!r} is no array.")
    if dataset.external or dataset.is_virtual or dataset.file != file:
        raise ModelFileError(f"{dataset.name!r} is kept outside of the file.")
    if most_bytes is None:
        most_bytes = max(LARGE_BYTES, MOST_TIMES * dataset.id.get_storage_size())
    if dataset.nbytes > most_bytes:
        raise ModelFileError(
            f"{dataset.name!r} would take {dataset.nbytes} bytes, of which the file "
            f"has {dataset.id.get_storage_size()}."
        )
    return dataset[()]


def _described(name: str, item: h5py.Dataset) -> Dataset:
    dtype = type_of(item)
    layout = item.id.get_create_plist().get_layout()
    whole = layout == h5py.h5d.CONTIGUOUS and not item.external
    return Dataset(
        name=name,
        shape=item.shape,
        dtype=dtype,
        extents=_extents(item, chunked=layout == h5py.h5d.CHUNKED),
        plain=whole and not dtype.hasobject and dtype.isnative and not item.fillvalue,
        filtered=item.compression is not None,
        shuffled=bool(item.shuffle),
    )


def _extents(item: h5py.Dataset, *, chunked: bool) -> tuple[tuple[int, int], ...]:
    if chunked:
        chunks = map(item.id.get_chunk_info, range(item.id.get_num_chunks()))
        return tuple((chunk.byte_offset, chunk.size) for chunk in chunks)
    start = item.id.get_offset()
    return () if start is None else ((start, item.id.get_storage_size()),)
