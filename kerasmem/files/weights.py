"""The HDF5 file inside of a `.keras` archive, each array stored in fewest bytes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from kerasmem.errors import OutputError
from kerasmem.files.chunks import (
    MOST_UNSTORED_BYTES,
    blocks_of,
    check_array,
    new_file,
    new_group,
    write_array,
)
from kerasmem.files.coding import (
    LARGE_BYTES,
    MOST_TIMES,
    decode,
    encode,
    has_code,
)
from kerasmem.files.threads import Threads

Store = Callable[[Threads, h5py.Group, str, h5py.Dataset], None]

_COMPARED_BYTES = 1 << 18
_CODED_AHEAD = 2
"""Whole arrays that are coded at once."""

ALIGNMENT_BYTES = 64
"""Where an array in a file begins that is to be mapped: what processors like best."""


def rewrite(old: h5py.File, target: Path, store: Store) -> None:
    """Copy an HDF5 file, with its groups and attributes.

    Args:
        old: the file.
        target: the copy.
        store: writes a dataset under its name into the new group.
    """
    if store is store_plain:
        aligned = {"alignment_threshold": 1, "alignment_interval": ALIGNMENT_BYTES}
        made = h5py.File(target, "w", **aligned)
    else:
        made = new_file(target)
    ahead = {"ahead": _CODED_AHEAD} if store is store_coded else {}
    with made as new, Threads(**ahead) as threads:
        _copy(old, new, partial(store, threads))


def _copy(old: h5py.Group, new: h5py.Group, store: Callable[..., None]) -> None:
    _copy_attributes(old, new)
    for name, item in old.items():
        if isinstance(item, h5py.Group):
            _copy(item, new_group(new, name), store)
        else:
            store(new, name, item)


def _copy_attributes(old: Any, new: Any) -> None:
    if h5py.h5a.get_num_attrs(old.id):
        for name, value in old.attrs.items():
            new.attrs[name] = value


def store_plain(
    threads: Threads, group: h5py.Group, name: str, dataset: h5py.Dataset
) -> None:
    """Write a dataset in one piece, as it is; nothing of one that is all zero."""
    del threads
    if not 0 < dataset.nbytes <= MOST_UNSTORED_BYTES or not _all_zero(dataset):
        group.copy(dataset, name)
        return
    _copy_attributes(dataset, group.create_dataset(name, dataset.shape, dataset.dtype))


def _all_zero(dataset: h5py.Dataset) -> bool:
    return _is_numbers(dataset) and not any(
        np.ascontiguousarray(block).view(np.uint8).any() for block in blocks_of(dataset)
    )


def _is_numbers(dataset: h5py.Dataset) -> bool:
    return dataset.dtype.kind in "biufV" and not dataset.dtype.hasobject


def store_deflated(
    threads: Threads, group: h5py.Group, name: str, dataset: h5py.Dataset
) -> None:
    """Write a dataset of numbers in deflated pieces, any other as it is."""
    if not _is_numbers(dataset):
        group.copy(dataset, name)
        return
    form = (dataset.shape, dataset.dtype)
    made = write_array(threads, group, name, form, blocks_of(dataset))
    _copy_attributes(dataset, made)


def store_coded(
    threads: Threads, group: h5py.Group, name: str, dataset: h5py.Dataset
) -> None:
    """Write a dataset as coded bytes, if those are fewer or could be mistaken."""
    if not (dataset.shape and has_code(dataset.dtype)):
        group.copy(dataset, name)
        return

    def write(code: bytes) -> None:
        if _is_smaller(code, dataset) or could_be_code(dataset):
            group.create_dataset(name, data=np.frombuffer(code, np.uint8))
        else:
            group.copy(dataset, name)

    threads.run(encode, dataset[()], then=write)


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
        slice(start, start + _COMPARED_BYTES)
        for start in range(0, first.nbytes, _COMPARED_BYTES)
    )
    ours, theirs = (each.reshape(-1).view(np.uint8) for each in (first, second))
    return all(np.array_equal(ours[piece], theirs[piece]) for piece in pieces)


def check_same(old: h5py.File, new: h5py.File, *, coded: bool) -> None:
    """Read every array of a copy, and compare it with the original bit by bit.

    Raises:
        OutputError: if one differs.
    """
    kinds = set()

    def compare(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        found: Any = new[name]
        kind = (item.dtype, found.chunks is not None and found.shuffle)
        # One of each kind as any reader reads it, by HDF5's own filters.
        if found.chunks is not None and kind in kinds:
            form = (item.shape, item.dtype)
            check_array(threads, found, name, form, blocks_of(item))
            return
        kinds.add(kind)
        then = partial(_raise_unless, name)
        threads.run(_is_same, item[()], found[()], coded, then=then)

    with Threads(ahead=_CODED_AHEAD) if coded else Threads() as threads:
        old.visititems(compare)


def _is_same(expected: Any, found: Any, coded: bool) -> bool:  # noqa: FBT001
    found = uncoded(found) if coded and isinstance(found, np.ndarray) else found
    return same_bits(expected, found)


def _raise_unless(name: str, same: bool) -> None:  # noqa: FBT001
    if not same:
        raise OutputError(f"the weight {name!r} was not read back as it was written")
