"""A model whose weights stay in its file until a layer needs them.

Keras loads the model itself, from an archive that is as the file but for the weights:
in their place it has the names of the arrays alone. What Keras then asks for by name is
given as an array over the file, and the variables remember it. An optimizer begins
anew: what it learned is as large as the weights, and is needed for all of them at once.
"""

import mmap
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kerasmem import backends
from kerasmem.backends.at_rest import Offloaded
from kerasmem.backends.lazy import lazy_variables
from kerasmem.backends.mapped import MappedArray
from kerasmem.errors import ConfigError, ModelFileError
from kerasmem.files.archive import (
    DAMAGED,
    OPTIMIZER,
    WEIGHTS,
    Window,
    data_start,
    opened_weights,
)
from kerasmem.files.coded_model import CONFIG, is_coded, unwrapped, write_skeleton
from kerasmem.files.datasets import Dataset, datasets, form_of
from kerasmem.records.plain import read_json

_NAME = "MappedModel"

Made = Callable[[], np.ndarray]
"""Gives an array over a file."""


class MappedWeights:
    """The weights in a `.keras` file, as arrays over it.

    Args:
        path: the file.
        described: True for a model whose variables only have a shape and a type, see
            `lazy_variables`. The file may have been compressed then: its arrays are
            none to look at.
        at_rest: for variables that go on having their values in files.

    Raises:
        ModelFileError: if the weights cannot be mapped.
        ConfigError: if variables have values at once here.

    Attributes:
        learned: whether the file has an optimizer that has made a step.
        file: which one it is, whatever will have its name.
    """

    def __init__(
        self, path: Path, *, described: bool = False, at_rest: Offloaded | None = None
    ) -> None:
        self._path, self._described, self._at_rest = path, described, at_rest
        self._values = backends.current().lazy_values()
        if (reason := self._values.why_not()) is not None:
            raise ConfigError(
                f"memory_map=True does not go with {reason}, which wants every "
                "variable's value at once. Load the model without it."
            )
        try:
            if described and not is_mappable(path):
                self._arrays, self.learned, self.file = _placeholders(path)
            else:
                # What could be written to counts as memory of the process's own.
                access = mmap.ACCESS_READ if described else mmap.ACCESS_COPY
                access = access if at_rest is None else at_rest.access
                map_all = not described and at_rest is None
                found = _read(path, access, map_all=map_all)
                self._arrays, self.learned, self.file = found
        except ModelFileError:
            raise
        except DAMAGED as error:
            raise ModelFileError(
                f"{str(path)!r} is damaged: where its weights lie cannot be read."
            ) from error

    @contextmanager
    def skeleton(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Give a file that Keras loads the model from, and custom objects for that.

        Within the scope no variable gets a value before somebody looks at it.
        """
        with (
            skeleton(self._path, self._arrays) as found,
            lazy_variables(
                self._values, described=self._described, at_rest=self._at_rest
            ),
        ):
            yield found


@contextmanager
def skeleton(
    path: Path, arrays: Mapping[str, Made]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give a file that Keras loads a model from, and custom objects for that.

    Args:
        path: the file of the model.
        arrays: those that its weights get, by their paths in the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / path.name
        write_skeleton(path, small, arrays, _NAME)
        yield small, {f"kerasmem>{_NAME}": _Mapped([*arrays.values()])}


def is_mappable(path: Path) -> bool:
    """Return whether the weights in a `.keras` file lie there as they are."""
    with zipfile.ZipFile(path) as archive:
        if WEIGHTS not in archive.namelist():
            return False
        if archive.getinfo(WEIGHTS).compress_type != zipfile.ZIP_STORED:
            return False
        if is_coded(read_json(archive.read(CONFIG))):
            return False
    with opened_weights(path) as weights:
        return weights is not None and not any(
            each.filtered for each in datasets(weights)
        )


def _placeholders(path: Path) -> tuple[dict[str, Made], bool, os.stat_result]:
    """Return arrays of the shapes and types in a file, none of which it is read for."""
    arrays: dict[str, Made] = {}
    with opened_weights(path) as weights:
        if weights is None:
            raise ModelFileError(f"{str(path)!r} has no weights to be told of.")
        stored = datasets(weights)
        for each in stored:
            if each.name.startswith(OPTIMIZER):
                continue
            form = form_of(weights, each)
            if each.dtype.hasobject:
                words = weights[each.name][()]
                arrays[each.name] = partial(np.asarray, words)
            else:
                shape, dtype = form or (each.shape, each.dtype)
                arrays[each.name] = partial(nothing, shape, dtype)
        return arrays, _has_stepped(weights, stored), path.stat()


def nothing(
    shape: tuple[int, ...], dtype: np.dtype, name: str | None = None
) -> MappedArray:
    """Return an array of a shape and a type that takes no memory, and has a name."""
    made = np.broadcast_to(np.zeros((), dtype), shape).view(MappedArray)
    made.name = name
    return made


def _read(
    path: Path, access: int, *, map_all: bool
) -> tuple[dict[str, Made], bool, os.stat_result]:
    """Return the arrays in a file by their paths, and what `MappedWeights` has."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        if WEIGHTS not in archive.namelist():
            raise ModelFileError(f"{str(path)!r} has no weights to be mapped.")
        member = archive.getinfo(WEIGHTS)
        coded = is_coded(read_json(archive.read(CONFIG)))
        if coded or member.compress_type != zipfile.ZIP_STORED:
            raise _compressed(path)
        start, size = data_start(file, member), member.file_size
        with h5py.File(Window(file, start, size), "r") as weights:
            found = datasets(weights)
            learned = _has_stepped(weights, found)
            found = [each for each in found if not each.name.startswith(OPTIMIZER)]
            odd = [each.name for each in found if not each.plain]
            if odd and map_all:
                raise _compressed(path)
            read = {name: weights[name][()] for name in odd}
        whole = mmap.mmap(file.fileno(), 0, access=access)
        status = os.fstat(file.fileno())
    arrays: dict[str, Made] = {name: partial(read.__getitem__, name) for name in odd}
    for each in found:
        if each.plain:
            _check_within(path, each, size)
            arrays[each.name] = _array(whole, start, each)
    return arrays, learned, status


def _has_stepped(weights: h5py.File, stored: Sequence[Dataset]) -> bool:
    counters = (
        each
        for each in stored
        if each.name.startswith(OPTIMIZER) and not each.shape and each.dtype.kind == "i"
    )
    return any(weights[each.name][()] > 0 for each in counters)


def _array(whole: mmap.mmap, start: int, dataset: Dataset) -> Made:
    def mapped() -> np.ndarray:
        if not dataset.extents:
            return np.zeros(dataset.shape, dataset.dtype).view(MappedArray)
        place = start + dataset.extents[0][0]
        return MappedArray.of(whole, place, dataset.shape, dataset.dtype)

    return mapped


def _check_within(path: Path, dataset: Dataset, size: int) -> None:
    for first, length in dataset.extents:
        if length != dataset.nbytes or first + length > size:
            raise ModelFileError(
                f"{str(path)!r} is damaged: the weight {dataset.name!r} does not lie "
                "within it."
            )


def _compressed(path: Path) -> ModelFileError:
    return ModelFileError(
        f"The weights in {str(path)!r} are compressed, so that they cannot be used "
        "where they lie. Write the file anew, as large as its weights: "
        "km.save_model(km.load_model(path), path, coding='stored')."
    )


class _Mapped:
    """What a skeleton's config means by the model; see `CodedModel`."""

    def __init__(self, arrays: Sequence[Made]) -> None:
        self._arrays = arrays

    def from_config(self, config: dict[str, Any]) -> Any:
        """Return the model, whose weights are arrays over the file."""
        return unwrapped(config, lambda number, _: self._arrays[int(number)]())
