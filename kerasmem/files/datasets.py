"""Arrays of an HDF5 file, and limits on the memory that a file can request.

A dataset can declare an array of any size without storing data. A config can declare a
layer of any size without weights. Memory is allocated only if both agree.
"""

import functools
import math
import mmap
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.archive import (
    OPTIMIZER,
    SUPERBLOCK_BYTES,
    hdf5_bytes,
    opened_weights,
    stored_bytes,
)
from kerasmem.files.chunks import type_of
from kerasmem.files.coding import LARGE_BYTES, MOST_TIMES, coded_form
from kerasmem.units import MIB


@dataclass(frozen=True)
class Dataset:
    """An array in a file.

    `extents` are the offset and size of each stored block. An array is `plain` if its
    entries are stored contiguously and uncompressed, or not at all because all are
    zero. An array is `filtered` if HDF5 compresses it, and `shuffled` if HDF5 groups
    bytes.
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


def arrays_in(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Returns the arrays in a group by path. Links are not followed."""
    arrays: dict[str, h5py.Dataset] = {}

    def keep(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = item

    group.visititems(keep)
    return arrays


def datasets(file: h5py.File) -> list[Dataset]:
    """Returns the arrays in a file, sorted by path."""
    return [_described(name, item) for name, item in arrays_in(file).items()]


def weights_in(file: h5py.File) -> list[Dataset]:
    """Returns the arrays in a file, without the optimizer."""
    return [each for each in datasets(file) if not each.name.startswith(OPTIMIZER)]


def attribute_text(value: Any) -> str:
    """Returns an HDF5 attribute as text."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def whole_array(
    dataset: Any, file: h5py.File, most_bytes: int | None = None
) -> np.ndarray:
    """Returns the array of a dataset.

    Raises `ModelFileError` if the item is no array or is stored in another file. Also
    if the array exceeds `most_bytes`, by default a multiple of the stored size.
    """
    if not isinstance(dataset, h5py.Dataset):
        raise ModelFileError(f"{dataset.name!r} is no array.")
    if dataset.external or dataset.is_virtual or dataset.file != file:
        raise ModelFileError(f"{dataset.name!r} is stored outside the file.")
    if most_bytes is None:
        most_bytes = max(LARGE_BYTES, MOST_TIMES * dataset.id.get_storage_size())
    if dataset.nbytes > most_bytes:
        raise ModelFileError(
            f"{dataset.name!r} would take {dataset.nbytes} bytes, but the file has "
            f"{dataset.id.get_storage_size()}."
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


FORM_BYTES = 400
"""Number of leading bytes of a coded array that contain its shape and type."""

_HEAP = b"GCOL\x01\0\0\0"
_ENTRY = struct.Struct("<H6xQ")
"""Header of a heap, and format of an entry: index (0 is free space) and length."""

_FREE_ENTRIES = 16 * MIB
"""Number of entries allowed in addition to the weights in the file, for unsaved
weights."""

_FREE_LAYERS, _LAYERS_AN_ARRAY = 4096, 4
"""Number of layers that a model may have: a fixed number, and more per array."""

_ONE_THREAD = threading.RLock()
"""Serializes loads, because two concurrent loads would restore each other's patches."""

_LARGE_BYTES, _MOST_TIMES = 256 * MIB, 16
_MOST_TIMES_BEFORE_THE_MODEL = 100


def form_of(weights: h5py.File, each: Dataset) -> tuple[tuple[int, ...], Any] | None:
    """Returns the shape and type of a coded array, or `None` if it is not coded."""
    if each.dtype != "uint8" or len(each.shape) != 1 or not each.extents:
        return None
    return coded_form(weights[each.name][:FORM_BYTES].tobytes())


def inflates(weights: h5py.File, file_bytes: int) -> bool:
    """Returns whether the weights may be far larger than `file_bytes`."""
    whole = max(sum(_declared_bytes(weights).values()), int(weights.id.get_filesize()))
    return whole > max(_LARGE_BYTES, _MOST_TIMES * file_bytes)


def check_declared(path: Path, weights: h5py.File) -> None:
    """Raises `ModelFileError` if the weights in a file declare an implausible size."""
    sizes = _declared_bytes(weights)
    most = max(_LARGE_BYTES, _MOST_TIMES_BEFORE_THE_MODEL * path.stat().st_size)
    if sum(sizes.values()) > most:
        largest = max(sizes, key=sizes.__getitem__)
        storage_size = weights[largest].id.get_storage_size()
        raise ModelFileError(
            f"The weights in {str(path)!r} would take {sum(sizes.values())} bytes: "
            f"{largest!r} {sizes[largest]}, but the file has {storage_size}. The file "
            "is not opened."
        )


def check_heaps(path: Path) -> None:
    """Raises `ModelFileError` if a string heap in an HDF5 file is cyclic.

    HDF5 would loop forever.
    """
    if not path.stat().st_size:
        raise ModelFileError(f"{str(path)!r} is damaged: it is empty.")
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with content:
        # HDF5 reads nothing beyond the size in the superblock.
        end = min(hdf5_bytes(content[:SUPERBLOCK_BYTES]) or len(content), len(content))
        most = end // _ENTRY.size
        start = content.find(_HEAP, 0, end)
        while start >= 0 and most >= 0:
            most -= _entries_in(content, start, most)
            start = content.find(_HEAP, start + len(_HEAP), end)
    if most < 0:
        raise ModelFileError(f"{str(path)!r} is damaged: a heap of strings is cyclic.")


def _entries_in(content: mmap.mmap, start: int, most: int) -> int:
    size = int.from_bytes(content[start + 8 : start + 16], "little")
    place, end = start + 16, min(start + size, len(content))
    count = 0
    while place + _ENTRY.size <= end and count <= most:
        index, length = _ENTRY.unpack_from(content, place)
        if not index and length < _ENTRY.size:
            return most + 1
        # The length of entry 0, the free space, includes its header.
        place += length if not index else _ENTRY.size + -(-length // 8) * 8
        count += 1
    return count


@contextmanager
def bounded_weights(path: Path, *, layers_alone: bool = False) -> Iterator[None]:
    """Limits the weights and layers of a model during loading.

    Raises `ModelFileError` before a weight or layer beyond the limit is created.
    `layers_alone` limits only the number of layers.
    """
    budget = _Budget(functools.partial(_held_in, path))
    places = {(keras.Layer, "__init__"): budget.counting_layers}
    if not layers_alone:
        places[keras.Layer, "add_weight"] = budget.counting
        places[keras.metrics.Metric, "add_variable"] = budget.counting
    with _ONE_THREAD:
        originals = {place: getattr(*place) for place in places}
        # No issue known: Keras 3.15 limits the size of an archive, not of a config.
        for place, original in originals.items():
            setattr(*place, places[place](original))
        try:
            yield
        finally:
            for place, original in originals.items():
                setattr(*place, original)


class _Budget:
    def __init__(self, held: Callable[[], tuple[int, int]]) -> None:
        self._held, self._thread = held, threading.get_ident()
        self._allocated, self._most = 0, _FREE_ENTRIES
        self._layers, self._most_layers = 0, _FREE_LAYERS
        self._is_known = False

    def counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method that creates a variable."""

        def add(owner: Any, *args: Any, **kwargs: Any) -> Any:
            shape = kwargs.get("shape", args[0] if args else None)
            if self._is_ours() and isinstance(shape, tuple | list):
                self._take(math.prod(n for n in shape if isinstance(n, int)))
            return original(owner, *args, **kwargs)

        return add

    def counting_layers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the constructor of a layer."""
        budget = self

        # Keras inspects the signature, including argument names.
        @functools.wraps(original)
        def init(self: Any, **kwargs: Any) -> None:
            if budget._is_ours():
                budget._layers += 1
                budget._check()
            original(self, **kwargs)

        return init

    def _is_ours(self) -> bool:
        return threading.get_ident() == self._thread

    def _take(self, entries: int) -> None:
        self._allocated += entries
        self._check()

    def _check(self) -> None:
        if self._fits():
            return
        if not self._is_known:
            entries, arrays = self._held()
            # Twice, because the file has one byte for two 4-bit values.
            self._most, self._is_known = 2 * entries + self._most, True
            self._most_layers += _LAYERS_AN_ARRAY * arrays
        if not self._fits():
            raise ModelFileError(
                f"The model has {self._layers} layers and at least {self._allocated} "
                "weight entries, but its file has "
                f"{(self._most_layers - _FREE_LAYERS) // _LAYERS_AN_ARRAY} arrays with "
                f"{(self._most - _FREE_ENTRIES) // 2} entries. No memory is allocated."
            )

    def _fits(self) -> bool:
        return self._allocated <= self._most and self._layers <= self._most_layers


def _held_in(path: Path) -> tuple[int, int]:
    if path.is_dir():
        if (path / "saved_model.pb").exists():
            return stored_bytes(path), stored_bytes(path)
        counts = [*map(_held_in, path.glob("*.weights.h5"))]  # shards of a preset
        return sum(count[0] for count in counts), sum(count[1] for count in counts)
    if h5py.is_hdf5(path):
        with h5py.File(path, "r") as weights:
            return _count(weights)
    with opened_weights(path) as weights:
        return (0, 0) if weights is None else _count(weights)


def _count(weights: h5py.File) -> tuple[int, int]:
    arrays = datasets(weights)
    forms = ((form_of(weights, each) or (each.shape,))[0] for each in arrays)
    return sum(math.prod(shape) for shape in forms), len(arrays)


def _declared_bytes(weights: h5py.File) -> dict[str, int]:
    return {name: item.nbytes for name, item in arrays_in(weights).items()}
