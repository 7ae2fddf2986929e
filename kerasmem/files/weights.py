"""Writes and verifies the HDF5 file of a model's weights, array by array.

Each array is deflated, coded or stored. The checksums of the written arrays are kept,
so that the file can be verified after the weights are freed.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

import h5py
import ml_dtypes
import numpy as np

from kerasmem.checks import OneOf
from kerasmem.files.chunks import (
    Form,
    WrittenArray,
    blocks_of,
    checksum,
    is_as_written,
    new_file,
    new_group,
    not_read_back,
    note_type,
    type_in_file,
    type_of,
    whole_of,
    write_array,
    write_plain,
    write_whole,
)
from kerasmem.files.coding import (
    LARGE_BYTES,
    MOST_TIMES,
    decode,
    encode,
    has_code,
)
from kerasmem.files.threads import Threads
from kerasmem.stages import Progress

Coding = Literal["deflate", "entropy", "stored"]
CODINGS = OneOf(get_args(Coding))

_CODED_AHEAD = 2
"""Number of arrays that are coded concurrently."""

ALIGNMENT_BYTES = 64
"""Alignment of stored arrays in bytes, suitable for memory mapping."""


class WeightsFile:
    """Context manager that writes the arrays of an HDF5 file on several threads.

    `written` contains the arrays by path and is complete at the end of the scope.
    """

    def __init__(self, path: Path, coding: Coding, progress: Progress) -> None:
        self.written: dict[str, WrittenArray] = {}
        self._progress = progress
        self._coding: Coding = coding
        if coding == "stored":
            alignment = {
                "alignment_threshold": 1,
                "alignment_interval": ALIGNMENT_BYTES,
            }
            self._file = h5py.File(path, "w", **alignment)
        else:
            self._file = new_file(path)
        ahead = {"ahead": _CODED_AHEAD} if coding == "entropy" else {}
        self._threads = Threads(**ahead)
        self._groups: dict[str, h5py.Group] = {"": self._file}
        self._write = {
            "deflate": partial(write_array, self._threads),
            "entropy": self._coded,
            "stored": write_plain,
        }[coding]

    def __enter__(self) -> "WeightsFile":
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with _errors_of_the_disk(), suppress(*([RuntimeError] if error else [])):
            try:
                self._threads.__exit__(error, value, traceback)
            finally:
                self._file.close()

    def put(self, name: str, form: Form, blocks: Iterable[np.ndarray]) -> None:
        """Writes a numeric array from blocks. See `write_array`."""
        with _errors_of_the_disk():
            counted_blocks = self._progress.of(blocks)
            self.written[name] = self._write(*self._place(name), form, counted_blocks)

    def read(self, name: str) -> np.ndarray:
        """Returns a written array."""
        self._threads.finish()
        array = self._file[name][()]
        if self._coding == "entropy":
            array = uncoded(array)
        return np.asarray(array).view(self.written[name].dtype)

    def remove(self, name: str) -> None:
        """Removes a written array."""
        self._threads.finish()
        del self._file[name]
        del self.written[name]

    def put_rest(
        self,
        other: h5py.File,
        is_wanted: Callable[[str, h5py.Dataset], bool] = lambda *_: True,
        *,
        coded: bool = False,
    ) -> dict[str, np.ndarray]:
        """Copies groups, attributes and arrays from another file.

        Returns the arrays that are not numeric, by path. Arrays are copied if
        `is_wanted`, and decoded if `coded`. Names must not be written already.
        """
        words = {}

        def copy(name: str, item: Any) -> None:
            if isinstance(item, h5py.Group):
                _copy_attributes(item, self._group(name))
            elif not is_wanted(name, item):
                return
            elif coded and could_be_code(item):
                array = uncoded(item[()])
                self.put(name, (array.shape, array.dtype), [array])
            elif is_numbers(type_of(item)):
                self.put(name, (item.shape, type_of(item)), blocks_of(item))
            else:
                other.copy(item, *self._place(name))
                words[name] = item[()]

        _copy_attributes(other, self._file)
        other.visititems(copy)
        return words

    def _group(self, name: str) -> h5py.Group:
        if name not in self._groups:
            self._groups[name] = new_group(*self._place(name))
        return self._groups[name]

    def _place(self, name: str) -> tuple[h5py.Group, str]:
        group, _, key = name.rpartition("/")
        return self._group(group), key

    def _coded(
        self, group: h5py.Group, name: str, form: Form, blocks: Iterable[np.ndarray]
    ) -> WrittenArray:
        shape, dtype = form
        if not (shape and has_code(dtype)):
            return write_whole(group, name, form, blocks)
        array = whole_of(name, form, blocks)
        record = WrittenArray(shape, dtype)

        def write(coded: tuple[bytes, int]) -> None:
            code, crc = coded
            if _is_smaller(code, array.nbytes) or could_be_code(array):
                group.create_dataset(name, data=np.frombuffer(code, np.uint8))
            else:
                note_type(group.create_dataset(name, data=array), dtype)
            record.sums.append(crc)

        self._threads.run(_encoded, array, then=write)
        return record


@contextmanager
def _errors_of_the_disk() -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _copy_attributes(old: Any, new: Any) -> None:
    if h5py.h5a.get_num_attrs(old.id):
        for name, value in old.attrs.items():
            new.attrs[name] = value


def is_numbers(dtype: np.dtype) -> bool:
    """Returns whether a data type is numeric and known to HDF5 or Keras."""
    is_named = dtype.kind in "biuf" and dtype.type.__module__ == "numpy"
    return is_named or dtype == ml_dtypes.bfloat16


def _encoded(array: np.ndarray) -> tuple[bytes, int]:
    return encode(array), checksum(array)


def _is_smaller(code: bytes, nbytes: int) -> bool:
    # A code with an extreme ratio would be rejected as a decompression bomb.
    most = max(LARGE_BYTES, MOST_TIMES * len(code))
    return len(code) < nbytes <= most


def could_be_code(array: np.ndarray | h5py.Dataset) -> bool:
    """Returns whether an array has the form of a code: one axis of uint8.

    In a file of coded weights, all such arrays are codes.
    """
    return array.dtype == np.uint8 and array.ndim == 1


def uncoded(array: np.ndarray, most_bytes: int | None = None) -> np.ndarray:
    """Returns the array of a dataset in a file of coded weights. See `decode`."""
    if not could_be_code(array):
        return array
    decoded_array = decode(array.tobytes(), most_bytes)
    # bfloat16 is the only Keras type that HDF5 does not support.
    return (
        decoded_array.view(ml_dtypes.bfloat16)
        if decoded_array.dtype.kind == "V"
        else decoded_array
    )


def same_bits(a: Any, b: Any) -> bool:
    """Returns whether two arrays are equal bit by bit."""
    first, second = (np.atleast_1d(np.ascontiguousarray(array)) for array in (a, b))
    if first.dtype.hasobject or second.dtype.hasobject:  # strings
        return np.array_equal(first, second)
    forms = ((each.shape, each.dtype.itemsize) for each in (first, second))
    return len({*forms}) == 1 and checksum(first) == checksum(second)


def check_weights(
    weights: h5py.File, written: Mapping[str, WrittenArray], coding: Coding
) -> None:
    """Compares every array of a file with the written arrays.

    Raises `OutputError` if an array differs.
    """
    progress = Progress("checking the file", sum(a.nbytes for a in written.values()))
    for name, array in written.items():
        try:
            is_same = _is_same(weights.get(name), array, coding)
        except (OSError, RuntimeError, ValueError) as error:  # from HDF5 or a codec
            raise not_read_back(name) from error
        if not is_same:
            raise not_read_back(name)
        progress.add(array.nbytes)


def _is_same(dataset: Any, written: WrittenArray, coding: Coding) -> bool:
    if not isinstance(dataset, h5py.Dataset):
        return False
    if coding == "entropy" and could_be_code(dataset):
        decoded_array = decode(dataset[()].tobytes(), max(written.nbytes, 1))
        form = (written.shape, type_in_file(written.dtype))
        return (decoded_array.shape, decoded_array.dtype) == form and [
            checksum(decoded_array)
        ] == written.sums
    is_alike = dataset.dtype == type_in_file(written.dtype)
    is_alike = is_alike and dataset.shape == written.shape
    return is_alike and is_as_written(dataset, written)
