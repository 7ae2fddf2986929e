"""Arrays of an `.npz` or `.npy` file, mapped into memory instead of read."""

import io
import math
import mmap
import os
import tokenize
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from kerasmem.errors import DataError, ModelFileError
from kerasmem.files.archive import data_start
from kerasmem.units import MIB


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file, mapped read-only; nothing is loaded.

    A page is read when it is first looked at, and `release_pages` gives it back.

    Args:
        path: an `.npz` written with `numpy.savez`, or an `.npy`, whose one array comes
            under the name `x`.

    Raises:
        DataError: if there is no such file, if it is not sound, if an array in it is
            compressed, or holds Python objects.
    """
    if not path.is_file():
        raise DataError(f"There is no data file {str(path)!r}. Expected: an .npz file.")
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if path.suffix == ".npy":
            return {"x": _array(mapping, 0)}
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        return {
            member.filename.removesuffix(".npy"): _array(mapping, _start(path, member))
            for member in members
        }
    except (ValueError, EOFError, zipfile.BadZipFile, ModelFileError) as error:
        raise DataError(
            f"{path} cannot be mapped: {error}. Expected: an .npz written with "
            "numpy.savez, or an .npy file."
        ) from error


def mapping_of(array: Any) -> mmap.mmap | None:
    """Return the memory map that an array, or what it is a view of, lies in."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = array.obj if isinstance(array, memoryview) else _base(array)
    return array


def release_pages(mapping: mmap.mmap) -> None:
    """Give the resident pages of a map back; they are read again when looked at."""
    if hasattr(mapping, "madvise"):  # not on Windows, where they stay until needed
        mapping.madvise(mmap.MADV_DONTNEED)


def form_of(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, whether columns come first, and type of an array, read up to it.

    Args:
        file: at its header, as `numpy.save` writes it.
        size: bytes of the header and the array, or more.

    Raises:
        ValueError: if it is none, or larger, or holds Python objects.
    """
    version = np.lib.format.read_magic(file)
    try:
        if version == (1, 0):
            shape, in_columns, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, in_columns, dtype = np.lib.format.read_array_header_2_0(file)
    except tokenize.TokenError as error:  # NumPy tries it as one of Python 2
        raise ValueError(f"its header is damaged: {error}") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted > size:
        raise ValueError(f"it tells of an array of {wanted} bytes and has {size}")
    return shape, in_columns, dtype


def check_sizes(file: IO[bytes]) -> None:
    """Raise if arrays of an `.npy` or `.npz` file are larger than their bytes.

    Args:
        file: The open file, which is at its start afterwards.

    Raises:
        ValueError: if one is, or if the file inflates to far more than its size.
    """
    start = file.read(6)
    file.seek(0)
    if start[:4] in _ZIP:
        with zipfile.ZipFile(file) as archive:
            _check_members(archive)
    elif start == np.lib.format.MAGIC_PREFIX:
        form_of(file, os.fstat(file.fileno()).st_size)
    file.seek(0)


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_LARGE_BYTES, _MOST_TIMES = 256 * MIB, 100
"""What is so large and was so much smaller in the file was never a sample."""


def _check_members(archive: zipfile.ZipFile) -> None:
    for member in archive.infolist():
        if member.filename.endswith(".npy"):
            with archive.open(member) as file:
                form_of(file, member.file_size)
    whole = sum(member.file_size for member in archive.infolist())
    stored = sum(member.compress_size for member in archive.infolist())
    if whole > max(_LARGE_BYTES, _MOST_TIMES * stored):
        raise ValueError(f"it would take {whole} bytes, of which it has {stored}")


def _base(array: Any) -> Any:
    return getattr(array, "base", None)


def _start(path: Path, member: zipfile.ZipInfo) -> int:
    """Return where a member's bytes begin in the archive."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise DataError(
            f"The array {member.filename.removesuffix('.npy')!r} of {path} is "
            "compressed, so it cannot be mapped. Next: write the file once more with "
            "numpy.savez instead of numpy.savez_compressed."
        )
    with path.open("rb") as file:
        return data_start(file, member)


def _array(mapping: mmap.mmap, start: int) -> np.ndarray:
    head = io.BytesIO(mapping[start : start + 2**16])
    shape, in_columns, dtype = form_of(head, len(mapping) - start)
    return np.ndarray(
        shape,
        dtype,
        buffer=mapping,
        offset=start + head.tell(),
        order="F" if in_columns else "C",
    )
