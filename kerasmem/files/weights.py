"""The HDF5 file inside of a `.keras` archive, each array stored in fewest bytes."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from kerasmem.errors import OutputError
from kerasmem.files.coding import (
    LARGE_BYTES,
    MOST_TIMES,
    decode,
    encode,
    has_code,
)

Store = Callable[[h5py.Group, str, h5py.Dataset], None]

_SAMPLE_BYTES = 1 << 18
_WORTH_IT = 0.98
_LEAST_BYTES = 1 << 12
_ONE_CHUNK_BYTES = 1 << 20
_LARGE_BYTES = 1 << 32
"""Keras refuses a larger array of which the file has nothing."""

ALIGNMENT_BYTES = 64
"""Where an array in a file begins that is to be mapped: what processors like best."""


def rewrite(old: h5py.File, target: Path, store: Store) -> None:
    """Copy an HDF5 file, with its groups and attributes.

    Args:
        old: the file.
        target: the copy.
        store: writes a dataset under its name into the new group.
    """
    aligned = {"alignment_threshold": 1, "alignment_interval": ALIGNMENT_BYTES}
    with h5py.File(target, "w", **(aligned if store is store_plain else {})) as new:
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


def store_plain(group: h5py.Group, name: str, dataset: h5py.Dataset) -> None:
    """Write a dataset in one piece, as it is; nothing of one that is all zero."""
    if not 0 < dataset.nbytes <= _LARGE_BYTES or not _all_zero(dataset):
        group.copy(dataset, name)
        return
    _copy_attributes(dataset, group.create_dataset(name, dataset.shape, dataset.dtype))


def _all_zero(dataset: h5py.Dataset) -> bool:
    return (
        dataset.dtype.kind in "biufV"
        and not np.frombuffer(np.ascontiguousarray(dataset[()]), np.uint8).any()
    )


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
    rows = max(_SAMPLE_BYTES * dataset.shape[0] // dataset.nbytes, 1)
    sample = np.ascontiguousarray(dataset[:rows]).reshape(-1)
    entries = sample.view(np.uint8).reshape(sample.size, -1)
    plain, shuffled = (len(zlib.compress(x.tobytes(), 6)) for x in (entries, entries.T))
    return shuffled < _WORTH_IT * plain


def store_coded(group: h5py.Group, name: str, dataset: h5py.Dataset) -> None:
    """Write a dataset as coded bytes, if those are fewer or could be mistaken."""
    code = encode(dataset[()]) if dataset.shape and has_code(dataset.dtype) else None
    if code is None or not (_is_smaller(code, dataset) or could_be_code(dataset)):
        group.copy(dataset, name)
    else:
        group.create_dataset(name, data=np.frombuffer(code, np.uint8))


def _is_smaller(code: bytes, dataset: h5py.Dataset) -> bool:
    # So much smaller that it would be refused, it is left to be deflated.
    most = max(LARGE_BYTES, MOST_TIMES * len(code))
    return len(code) < dataset.nbytes <= most


def could_be_code(array: np.ndarray | h5py.Dataset) -> bool:
    """Return whether it looks like a code; `store_coded` leaves no other such array."""
    return array.dtype == np.uint8 and array.ndim == 1


def uncoded(array: np.ndarray, most_bytes: int | None = None) -> np.ndarray:
    """Return the array that a dataset written by `store_coded` stands for.

    Args:
        array: the dataset.
        most_bytes: as of `decode`.

    Raises:
        ModelFileError: if it is damaged.
    """
    if not could_be_code(array):
        return array
    found = decode(array.tobytes(), most_bytes)
    # The only one of Keras's types that HDF5 has no name for.
    return found.view(ml_dtypes.bfloat16) if found.dtype.kind == "V" else found


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays, or words, have the same entries to the bit."""
    first, second = (np.atleast_1d(np.ascontiguousarray(array)) for array in (a, b))
    if first.dtype.hasobject or second.dtype.hasobject:  # words
        return np.array_equal(first, second)
    if first.shape != second.shape or first.dtype.itemsize != second.dtype.itemsize:
        return False
    # In pieces: what is equal is noted in as many bytes as are compared.
    pieces = (
        slice(start, start + _SAMPLE_BYTES)
        for start in range(0, first.nbytes, _SAMPLE_BYTES)
    )
    ours, theirs = (each.reshape(-1).view(np.uint8) for each in (first, second))
    return all(np.array_equal(ours[piece], theirs[piece]) for piece in pieces)


def check_same(old: h5py.File, new: h5py.File, *, coded: bool) -> None:
    """Read every array of a copy, and compare it with the original bit by bit.

    Raises:
        OutputError: if one differs.
    """

    def compare(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        found = new[name][()]
        found = uncoded(found) if coded and isinstance(found, np.ndarray) else found
        if not same_bits(item[()], found):
            raise OutputError(
                f"the weight {name!r} was not read back as it was written"
            )

    old.visititems(compare)
