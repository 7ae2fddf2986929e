"""The HDF5 file inside of a `.keras` archive, each array stored in fewest bytes."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from kerasmem.errors import OutputError
from kerasmem.files.coding import decode, encode

Store = Callable[[h5py.Group, str, h5py.Dataset], None]

_SAMPLE_BYTES = 1 << 18
_WORTH_IT = 0.98
_LEAST_BYTES = 1 << 12
_ONE_CHUNK_BYTES = 1 << 20


def rewrite(source: Path, target: Path, store: Store) -> None:
    """Copy an HDF5 file, with its groups and attributes.

    Args:
        source: the file.
        target: the copy.
        store: writes a dataset under its name into the new group.
    """
    with h5py.File(source) as old, h5py.File(target, "w") as new:
        _copy(old, new, store)


def _copy(old: h5py.Group, new: h5py.Group, store: Store) -> None:
    _copy_attributes(old, new)
    for name, item in old.items():
        if isinstance(item, h5py.Group):
            _copy(item, new.create_group(name), store)
        else:
            store(new, name, item)


def _copy_attributes(old: Any, new: Any) -> None:
    for name, value in old.attrs.items():
        new.attrs[name] = value


def store_shuffled(group: h5py.Group, name: str, dataset: h5py.Dataset) -> None:
    """Write a dataset as it is, or shuffled and deflated, whichever deflates better.

    Shuffled, the first bytes of all entries come first, then the second ones: of float
    weights the bytes with the exponents are much alike. Zeros among them break that up.
    """
    if not _better_shuffled(dataset):
        group.copy(dataset, name)
        return
    chunks = dataset.shape if dataset.nbytes <= _ONE_CHUNK_BYTES else True
    made = group.create_dataset(
        name,
        data=dataset[()],
        chunks=chunks,
        compression="gzip",
        compression_opts=9,
        shuffle=True,
    )
    _copy_attributes(dataset, made)


def _better_shuffled(dataset: h5py.Dataset) -> bool:
    if dataset.dtype.itemsize == 1 or dataset.nbytes < _LEAST_BYTES:
        return False
    flat = np.ascontiguousarray(dataset[()]).reshape(-1).view(np.uint8)
    count = min(_SAMPLE_BYTES, flat.size) // dataset.dtype.itemsize
    entries = flat[: count * dataset.dtype.itemsize].reshape(count, -1)
    plain, shuffled = (len(zlib.compress(x.tobytes(), 6)) for x in (entries, entries.T))
    return shuffled < _WORTH_IT * plain


def store_coded(group: h5py.Group, name: str, dataset: h5py.Dataset) -> None:
    """Write a dataset as coded bytes, if those are fewer or could be mistaken."""
    array = dataset[()]
    code = encode(array) if isinstance(array, np.ndarray) and _has_code(array) else None
    if code is None or (len(code) >= array.nbytes and not could_be_code(array)):
        group.copy(dataset, name)
        return
    group.create_dataset(name, data=np.frombuffer(code, np.uint8))


def _has_code(array: np.ndarray) -> bool:
    return array.dtype.kind in "biufV" and array.dtype.itemsize in (1, 2, 4, 8)


def could_be_code(array: np.ndarray) -> bool:
    """Return whether it looks like a code; `store_coded` leaves no other such array."""
    return array.dtype == np.uint8 and array.ndim == 1


def uncoded(array: np.ndarray) -> np.ndarray:
    """Return the array that a dataset written by `store_coded` stands for.

    Raises:
        ModelFileError: if it is damaged.
    """
    if not could_be_code(array):
        return array
    found = decode(array.tobytes())
    # The only one of Keras's types that HDF5 has no name for.
    return found.view(ml_dtypes.bfloat16) if found.dtype.kind == "V" else found


def check_same(source: Path, target: Path, *, coded: bool) -> None:
    """Read every array of a copy, and compare it with the original bit by bit.

    Raises:
        OutputError: if one differs.
    """
    with h5py.File(source) as old, h5py.File(target) as new:

        def compare(name: str, item: Any) -> None:
            if not isinstance(item, h5py.Dataset):
                return
            found = new[name][()]
            found = uncoded(found) if coded and isinstance(found, np.ndarray) else found
            before = item[()]
            if np.asarray(before).tobytes() != np.asarray(found).tobytes():
                raise OutputError(
                    f"The weight {name!r} was not read back as it was written. Nothing "
                    "was written, and what was there before is untouched."
                )

        old.visititems(compare)
