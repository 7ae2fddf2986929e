"""Breakdown of a model file into weights and other contents."""

import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import h5py
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.archive import (
    DAMAGED,
    WEIGHTS,
    check_archive,
    file_sizes,
    is_weights_alone,
    opened_weights,
    shards_of,
    stored_bytes,
    weights_member,
)
from kerasmem.files.datasets import Dataset, arrays_in, datasets, form_of
from kerasmem.files.preset import is_preset, weight_files, weights_of
from kerasmem.records import FileContents, StoredTensor
from kerasmem.units import KIB

_EXACT, _STEPS = 16, 1 << 16
"""Minimum bytes per read of a deflated stream, and maximum number of reads."""

_OPTIMIZERS = ("optimizer/", "optimizer_weights/")  # in a .keras file, in an .h5 file


def deflated_places(
    file: BinaryIO, start: int, size: int, marks: Sequence[int]
) -> dict[int, int]:
    """Returns the number of deflated bytes read for given numbers of inflated bytes.

    The raw stream of `size` bytes starts at `start`. The result maps each of `marks` to
    a number from 0 to `size`.
    """
    ahead, places = sorted(set(marks), reverse=True), dict[int, int]()
    inflate, output_size = zlib.decompressobj(-zlib.MAX_WBITS), 0
    step = max(_EXACT, size // _STEPS)
    file.seek(start)
    for read in range(0, size, step):
        while ahead and ahead[-1] <= output_size:
            places[ahead.pop()] = read
        output_size += len(inflate.decompress(file.read(min(step, size - read))))
    # The remaining marks are at or beyond the end of the stream.
    return places | dict.fromkeys(ahead, size)


_STRUCTURE = "structure of the weights"
_VARIABLES = "vars"

Place = Callable[[int], int]
"""Maps an offset in the weights to an offset in the file."""


def inspect_file(path: str | Path) -> FileContents:
    """Returns the size of every weight in a file, and of the remaining contents.

    Args:
        path: Path of a `.keras` or `.h5` file, a `.weights.json` file with its shards,
            a KerasHub preset, or a SavedModel directory. For a SavedModel, the sizes
            are per file.

    Raises:
        ModelFileError: If the file is missing or damaged.
    """
    path = Path(path)
    if path.is_dir() and not is_preset(path):
        return _files(path)
    try:
        return _inspected(path)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error


def _inspected(path: Path) -> FileContents:
    if is_preset(path):
        return _of_preset(path)
    if is_weights_alone(path):
        tensors = []
        for shard in shards_of(path):
            with h5py.File(shard, "r") as weights:
                tensors += _plain(weights)
        return _contents(path, tuple(tensors), {})
    if not zipfile.is_zipfile(path):
        if not h5py.is_hdf5(path):
            raise ModelFileError(
                "Expected a complete model file, .keras or .h5. Received: "
                f"path={str(path)!r}."
            )
        with h5py.File(path, "r") as weights:
            return _contents(path, _plain(weights), {})
    check_archive(path)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    sizes = {member.filename: member.compress_size for member in members}
    tensors = _archived(path)
    sizes["archive"] = path.stat().st_size - sum(sizes.values())
    return _contents(path, tensors, sizes)


def _of_preset(folder: Path) -> FileContents:
    files, tensors = weight_files(folder), []
    for file in files:
        if file.suffix == ".h5":
            with h5py.File(file, "r") as weights:
                tensors += _plain(weights)
    sizes = dict(_files(folder).other)
    of_weights = [sizes.pop(str(file.relative_to(folder))) for file in files]
    return _contents(folder, tuple(tensors), {**sizes, WEIGHTS: sum(of_weights)})


def _files(folder: Path) -> FileContents:
    sizes = {str(file.relative_to(folder)): n for file, n in file_sizes(folder).items()}
    return FileContents(sum(sizes.values()), (), sizes)


def _contents(
    path: Path, tensors: tuple[StoredTensor, ...], sizes: dict[str, int]
) -> FileContents:
    whole, tensor_bytes = stored_bytes(path), sum(each.file_bytes for each in tensors)
    structure = sizes.pop(WEIGHTS, whole if not sizes else tensor_bytes) - tensor_bytes
    by_size = sorted(tensors, key=lambda each: -each.file_bytes)
    return FileContents(whole, tuple(by_size), {**sizes, _STRUCTURE: structure})


class FileSize(NamedTuple):
    """Size of a model file. See `ModelFigures`."""

    file_bytes: int
    optimizer_file_bytes: int = 0


def file_size(path: str | Path) -> FileSize:
    """Returns the size of a model file and its optimizer state.

    Less than 1 KiB counts as no state: the initial optimizer in files of
    `km.save_model` takes a few bytes. Directories and weights files have no optimizer
    state.
    """
    path, state = Path(path), ()
    try:
        if zipfile.is_zipfile(path):
            state = _archived(path, _OPTIMIZERS)
        elif path.is_file() and h5py.is_hdf5(path):
            with h5py.File(path, "r") as weights:
                state = _plain(weights, _OPTIMIZERS)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error
    size = sum(each.file_bytes for each in state)
    return FileSize(stored_bytes(path), size if size >= KIB else 0)


@dataclass(frozen=True)
class OptimizerVariables:
    """The variables of an optimizer: slots, step counter, learning rate.

    `is_fresh` is `True` if the step counter is 0, as in files of `km.save_model`.
    """

    entries: int
    bytes: int
    is_fresh: bool


def optimizer_state(path: str | Path) -> OptimizerVariables | None:
    """Returns the optimizer variables in a model file.

    Returns `None` for a SavedModel or an unusual file layout.
    """
    path = weights_of(Path(path)) if is_preset(path) else Path(path)
    if path.is_dir():
        return None
    try:
        if h5py.is_hdf5(path) or is_weights_alone(path):
            with ExitStack() as scope:
                shards = (h5py.File(each, "r") for each in shards_of(path))
                return _state([scope.enter_context(each) for each in shards])
        with opened_weights(path) as file:
            return None if file is None else _state([file])
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error


def _state(files: list[h5py.File]) -> OptimizerVariables:
    slots = [file.get(name) for file in files for name in _OPTIMIZERS]
    groups = [group for group in slots if isinstance(group, h5py.Group)]
    arrays = [array for group in groups for array in arrays_in(group).values()]
    counters = [a for a in arrays if a.shape == () and a.dtype.kind in "iu"]
    return OptimizerVariables(
        entries=sum(array.size for array in arrays),
        bytes=sum(array.nbytes for array in arrays),
        is_fresh=bool(counters) and not any(counter[()] for counter in counters),
    )


def _archived(
    path: Path, prefixes: tuple[str, ...] = ("",)
) -> tuple[StoredTensor, ...]:
    member_and_start = weights_member(path)
    with opened_weights(path) as weights:
        if member_and_start is None or weights is None:
            return ()
        member, start = member_and_start
        if member.compress_type != zipfile.ZIP_DEFLATED:
            return _plain(weights, prefixes)
        arrays = _starting(weights, prefixes)
        extents = [extent for each in arrays for extent in each.extents]
        marks = [mark for start, size in extents for mark in (start, start + size)]
        with path.open("rb") as file:
            places = deflated_places(file, start, member.compress_size, marks)
        of_place = places.__getitem__
        return tuple(_tensor(weights, each, of_place, "deflated") for each in arrays)


def _plain(
    weights: h5py.File, prefixes: tuple[str, ...] = ("",)
) -> tuple[StoredTensor, ...]:
    arrays = _starting(weights, prefixes)
    return tuple(_tensor(weights, each, lambda byte: byte, "stored") for each in arrays)


def _starting(weights: h5py.File, prefixes: tuple[str, ...]) -> list[Dataset]:
    return [each for each in datasets(weights) if each.name.startswith(prefixes)]


def _tensor(weights: h5py.File, each: Dataset, place: Place, how: str) -> StoredTensor:
    shape, dtype, coding = each.shape, each.dtype, how
    form = form_of(weights, each)
    if form is not None:
        (shape, dtype), coding = form, "entropy"
    elif not each.extents:
        coding = "zeros"
    elif each.filtered:
        coding = "shuffled, deflated" if each.shuffled else "deflated"
    return StoredTensor(
        name=_name(weights, each.name),
        shape=shape,
        dtype=dtype.name,
        weight_bytes=int(np.prod(shape, dtype=np.int64)) * dtype.itemsize,
        file_bytes=sum(
            place(start + size) - place(start) for start, size in each.extents
        ),
        coding=coding,
    )


def _name(weights: h5py.File, path: str) -> str:
    *around, kind, number = path.split("/")
    if kind != _VARIABLES or not around or around[0] == "optimizer":
        return path.replace(f"/{_VARIABLES}/", "/")
    names = [_layer(weights, around[:end]) for end in range(1, len(around) + 1)]
    return "/".join([*filter(None, names[:-1]), names[-1] or around[-1], number])


def _layer(weights: h5py.File, path: list[str]) -> str | None:
    variables = weights.get("/".join([*path, _VARIABLES]))
    name = None if variables is None else variables.attrs.get("name")
    return None if name is None else str(name)
