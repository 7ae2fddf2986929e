"""Which weight takes how many bytes of a model's file."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.archive import check_archive
from kerasmem.files.datasets import Dataset, datasets
from kerasmem.files.declared import form_of
from kerasmem.files.deflated import deflated_places
from kerasmem.files.members import DAMAGED, WEIGHTS, data_start, opened_weights
from kerasmem.files.size import file_sizes
from kerasmem.records import FileContents, StoredTensor

_STRUCTURE = "structure of the weights"
_VARIABLES = "vars"

Place = Callable[[int], int]
"""Where in the file the bytes of the weights up to one of them end."""


def inspect_file(path: str | Path) -> FileContents:
    """Return what every weight in a file takes of it, and what all else takes.

    Args:
        path: a `.keras` or `.h5` file, or the folder of a SavedModel: what each of
            its files takes.

    Raises:
        ModelFileError: if it is damaged, or no such file.
    """
    path = Path(path)
    if path.is_dir():
        return _files(path)
    try:
        return _inspected(path)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error


def _inspected(path: Path) -> FileContents:
    if not zipfile.is_zipfile(path):
        if not h5py.is_hdf5(path):
            raise ModelFileError(
                "Expected a model file, .keras or .h5, that is whole. Received: "
                f"path={str(path)!r}."
            )
        with h5py.File(path, "r") as weights:
            return _contents(path, _tensors(weights, lambda byte: byte, "stored"), {})
    check_archive(path)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    sizes = {member.filename: member.compress_size for member in members}
    with opened_weights(path) as weights:
        tensors = () if weights is None else _archived(path, members, weights)
    sizes["archive"] = path.stat().st_size - sum(sizes.values())
    return _contents(path, tensors, sizes)


def _files(folder: Path) -> FileContents:
    sizes = {str(file.relative_to(folder)): n for file, n in file_sizes(folder).items()}
    return FileContents(sum(sizes.values()), (), sizes)


def _contents(
    path: Path, tensors: tuple[StoredTensor, ...], sizes: dict[str, int]
) -> FileContents:
    whole, taken = path.stat().st_size, sum(each.file_bytes for each in tensors)
    structure = sizes.pop(WEIGHTS, whole if not sizes else taken) - taken
    by_size = sorted(tensors, key=lambda each: -each.file_bytes)
    return FileContents(whole, tuple(by_size), {**sizes, _STRUCTURE: structure})


def _archived(
    path: Path, members: list[zipfile.ZipInfo], weights: h5py.File
) -> tuple[StoredTensor, ...]:
    member = next(each for each in members if each.filename == WEIGHTS)
    if member.compress_type != zipfile.ZIP_DEFLATED:
        return _tensors(weights, lambda byte: byte, "stored")
    extents = [extent for each in datasets(weights) for extent in each.extents]
    marks = [mark for start, size in extents for mark in (start, start + size)]
    with path.open("rb") as file:
        start = data_start(file, member)
        places = deflated_places(file, start, member.compress_size, marks)
    return _tensors(weights, places.__getitem__, "deflated")


def _tensors(weights: h5py.File, place: Place, how: str) -> tuple[StoredTensor, ...]:
    return tuple(_tensor(weights, each, place, how) for each in datasets(weights))


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
    """Return the path of an array with the layers named as the model names them."""
    *around, kind, number = path.split("/")
    if kind != _VARIABLES or not around or around[0] == "optimizer":
        return path.replace(f"/{_VARIABLES}/", "/")
    names = [_layer(weights, around[:end]) for end in range(1, len(around) + 1)]
    return "/".join([*filter(None, names[:-1]), names[-1] or around[-1], number])


def _layer(weights: h5py.File, path: list[str]) -> str | None:
    """Return the name of the layer at a path, None if there is none that is named."""
    variables = weights.get("/".join([*path, _VARIABLES]))
    name = None if variables is None else variables.attrs.get("name")
    return None if name is None else str(name)
