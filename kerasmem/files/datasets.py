"""Where in an HDF5 file the entries of each array lie."""

from dataclasses import dataclass

import h5py
import ml_dtypes
import numpy as np


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


def _described(name: str, item: h5py.Dataset) -> Dataset:
    dtype = item.dtype
    if item.attrs.get("dtype") == "bfloat16" and dtype.itemsize == 2:
        dtype = np.dtype(ml_dtypes.bfloat16)
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
