"""Samples from an `.npz` file or a function named `package.module:function`."""

import importlib
import io
import math
import mmap
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import keras
import numpy as np

from kerasmem.errors import DataError, ModelFileError
from kerasmem.files.archive import data_start
from kerasmem.files.data.check import check_lengths
from kerasmem.files.data.forms import is_array_data, sample_count
from kerasmem.types import Dataset, Tensor
from kerasmem.units import MIB


def map_arrays(path: Path) -> dict[str, np.ndarray]:
    """Maps the arrays of an uncompressed `.npz` or `.npy` file read-only.

    Pages are read on first access. `release_pages` frees them. The array of an `.npy`
    file gets the name `x`.

    Raises `DataError` if the file is missing or damaged, or an array is compressed or
    contains Python objects.
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


def mapping_of(array: Tensor) -> mmap.mmap | None:
    """Returns the memory map of an array or of its base, or `None`."""
    while array is not None and not isinstance(array, mmap.mmap):
        is_view = isinstance(array, memoryview)
        array = array.obj if is_view else getattr(array, "base", None)
    return array


def release_pages(mapping: mmap.mmap) -> None:
    """Frees the resident pages of a map. They are read again on access."""
    if hasattr(mapping, "madvise"):  # not on Windows
        mapping.madvise(mmap.MADV_DONTNEED)


def form_of(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Reads the header of an array: shape, Fortran order and data type.

    Raises `ValueError` if there is no array of at most `size` bytes, or the array
    contains Python objects.
    """
    version = np.lib.format.read_magic(file)
    try:
        if version == (1, 0):
            shape, in_columns, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, in_columns, dtype = np.lib.format.read_array_header_2_0(file)
    except tokenize.TokenError as error:  # NumPy parses the header as Python 2
        raise ValueError(f"its header is damaged: {error}") from error
    if dtype.hasobject:
        raise ValueError("it contains Python objects, which are never loaded")
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or nbytes > size:
        raise ValueError(f"it declares an array of {nbytes} bytes but has {size}")
    return shape, in_columns, dtype


def check_sizes(file: IO[bytes]) -> None:
    """Raises `ValueError` if an `.npy` or `.npz` file declares more data than it has.

    Also raised if the file inflates to far more than its size. Rewinds the file.
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
"""Size and ratio from which a file is rejected as a decompression bomb."""


def _check_members(archive: zipfile.ZipFile) -> None:
    for member in archive.infolist():
        if member.filename.endswith(".npy"):
            with archive.open(member) as file:
                form_of(file, member.file_size)
    whole = sum(member.file_size for member in archive.infolist())
    compressed_size = sum(member.compress_size for member in archive.infolist())
    if whole > max(_LARGE_BYTES, _MOST_TIMES * compressed_size):
        raise ValueError(f"it would take {whole} bytes, but has {compressed_size}")


def _start(path: Path, member: zipfile.ZipInfo) -> int:
    if member.compress_type != zipfile.ZIP_STORED:
        raise DataError(
            f"The array {member.filename.removesuffix('.npy')!r} of {path} is "
            "compressed and cannot be mapped. Next: write the file with numpy.savez "
            "instead of numpy.savez_compressed."
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


def shared(batch_size: int) -> int:
    """Returns the largest batch size that divides evenly among the devices, or 0."""
    return batch_size - batch_size % _devices()


def check_shared(data: Dataset, batch_size: int) -> None:
    """Raises `DataError` unless batches of arrays divide evenly among the devices."""
    devices, count = _devices(), sample_count(data)
    if not is_array_data(data) or count is None:
        return
    if count % devices or batch_size % devices:
        raise DataError(
            f"keras.distribution divides each batch evenly among {devices} devices. "
            f"Expected: samples and batch_size in multiples of {devices}. Received: "
            f"{count} samples, batch_size={batch_size}. Next: omit "
            f"{count % devices} samples, or choose another batch_size."
        )


def check_ends(data: Dataset, purpose: str) -> None:
    """Raises `DataError` for infinite batched data. The message contains `purpose`."""
    if isinstance(data, keras.utils.PyDataset):
        is_endless = data.num_batches is None
    else:  # Only a `tf.data.Dataset` has one; -1 is infinite.
        cardinality = getattr(data, "cardinality", None)
        is_endless = cardinality is not None and int(cardinality()) == -1
    if is_endless:
        raise DataError(
            f"The data has no end, so {purpose} would not stop. Expected: a number of "
            f"batches. Received: {type(data).__name__}. Next: dataset.take(100) for a "
            "tf.data.Dataset, or return the number of batches from `num_batches` of "
            "the PyDataset."
        )


def _devices() -> int:
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    return max(distribution.num_model_replicas // distribution.num_processes, 1)


_KEY = re.compile(r"(x|y|sample_weight)(?:_(train|test))?(?:_(.+))?")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KINDS = "biufSU"
_ADVICE = (
    "Next: use numpy.savez with the arrays x and y, or x_train, y_train, "
    "x_test and y_test."
)


@dataclass(frozen=True)
class LoadedData:
    """Training samples and optional test samples. See `kerasmem.files.data`."""

    train: Any
    test: Any = None


def load_data(spec: str | Path, *, mapped: bool = False) -> LoadedData:
    """Loads samples from an `.npz` file or from a function `package.module:function`.

    An `.npz` file contains `x` and optionally `y` and `sample_weight`. Splits are named
    `x_train`, `y_train`, `x_test`, `y_test`. Several inputs or outputs are named
    `x_NAME` and `y_NAME`, or `x_train_NAME` in a split, and are returned as dicts.
    Other arrays are ignored. Pickled data is never loaded.

    A function takes no arguments. It returns a dataset, `(x, y)`, a `LoadedData`, or
    `(train, test)` with two tuples or two datasets.

    If `mapped`, the arrays are memory-mapped read-only. See `map_arrays`.

    Raises `DataError` if the file or function is missing or has no samples, or the
    function or its module raises an error.
    """
    path = Path(spec)
    if is_function(spec):
        return _from_function(str(spec))
    return _grouped(path, map_arrays(path) if mapped else _read_npz(path))


def is_function(spec: Any) -> bool:
    """Returns whether `spec` is the name of a function and not of a file."""
    return bool(_FUNCTION.fullmatch(str(spec))) and not Path(spec).exists()


def _from_function(spec: str) -> LoadedData:
    module_name, name = spec.split(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"Cannot import the data function {spec!r}: {type(error).__name__}: "
            f"{error}."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise DataError(
            f"Module {module_name!r} has no function {name!r}. Received: data={spec!r}."
        )
    return _split(_call(function, spec), spec)


def _call(function: Callable[[], Any], spec: str) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise DataError(
            f"The data function {spec!r} raised {type(error).__name__}: {error}."
        ) from error


def _split(data: Dataset, spec: str) -> LoadedData:
    if isinstance(data, LoadedData):
        return data
    if isinstance(data, tuple) and len(data) == 2 and all(map(_is_whole, data)):
        return LoadedData(*data)
    try:
        is_array_data(data)
    except DataError as error:
        raise DataError(
            f"The data function {spec!r} returned no samples. {error}"
        ) from error
    return LoadedData(data)


def _is_whole(part: Any) -> bool:
    return isinstance(part, tuple) or (part is not None and not is_array_data(part))


def _grouped(path: Path, arrays_by_key: dict[str, np.ndarray]) -> LoadedData:
    splits: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for key, array in arrays_by_key.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        role, split, name = match[1], match[2] or "train", match[3] or ""
        arrays = splits.setdefault(split, {}).setdefault(role, {})
        if name in arrays or (arrays and "" in {name, *arrays}):
            raise DataError(f"{path} contains {role} twice: also as {key!r}. {_ADVICE}")
        if array.dtype.kind not in _KINDS:
            raise DataError(
                f"{path} contains {key!r} with entries of type {array.dtype}. "
                f"Expected: real numbers or strings. {_ADVICE}"
            )
        # Keras accepts strings only as objects.
        is_text = array.dtype.kind in "SU"
        arrays[name] = array.astype(str).astype(object) if is_text else array
    for split in {"train", *splits}:
        if "x" not in splits.get(split, {}):
            array_name = "x_test" if split == "test" else "x or x_train"
            raise DataError(f"{path} contains no array {array_name}. {_ADVICE}")
    return LoadedData(**{split: _as_tuple(parts) for split, parts in splits.items()})


def _as_tuple(parts: dict[str, dict[str, np.ndarray]]) -> tuple:
    check_lengths(
        {
            f"{role}_{name}" if name else role: array
            for role, arrays in parts.items()
            for name, array in arrays.items()
        }
    )
    if "sample_weight" in parts and "y" not in parts:
        raise DataError(f"The file contains sample_weight without y. {_ADVICE}")
    roles = [role for role in ("x", "y", "sample_weight") if role in parts]
    return tuple(parts[role].get("", parts[role]) for role in roles)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise DataError(
            f"There is no data file {str(path)!r}{': it is a folder' * path.is_dir()}. "
            "Expected: an .npz file, a function as package.module:function, or for "
            "language models a .txt or .npy file."
        )
    try:
        with path.open("rb") as file:
            check_sizes(file)
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is an .npy file with a single array")
            return {key: archive[key] for key in archive.files if _KEY.fullmatch(key)}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = str(error).rstrip(".")
        if "allow_pickle" in reason:  # NumPy's message recommends unsafe loading
            reason = "it has another format or is truncated"
            if zipfile.is_zipfile(path):
                reason = "it contains Python objects, which are never loaded"
        raise DataError(
            f"{path} is not a valid .npz file: {reason}. {_ADVICE}"
        ) from error
