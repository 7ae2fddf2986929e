"""A model whose weights stay in its file until a layer needs them.

Keras loads the model from its skeleton. What it then asks for by name is given as an
array over the file, and the variables remember it. An optimizer begins anew: what it
learned is as large as the weights, and is needed for all of them at once.
"""

import mmap
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.at_rest import Offloaded
from kerasmem.backends.lazy import lazy_variables
from kerasmem.backends.mapped import MappedArray
from kerasmem.errors import ConfigError, ModelFileError
from kerasmem.files.archive import (
    CONFIG,
    DAMAGED,
    WEIGHTS,
    Window,
    opened_weights,
    weights_member,
)
from kerasmem.files.datasets import Dataset, datasets, weights_in, whole_array
from kerasmem.files.skeleton import is_coded, skeleton
from kerasmem.records.plain import read_json


@contextmanager
def mapped_weights(
    path: Path, at_rest: Offloaded | None = None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give a file that Keras loads the model from, and custom objects for that.

    Within the scope no variable gets a value before somebody looks at it.

    Args:
        path: a `.keras` file with plain weights.
        at_rest: for variables that go on having their values in files.

    Raises:
        ModelFileError: if the weights cannot be mapped.
        ConfigError: if variables have values at once here.
    """
    values = current().lazy_values()
    if (reason := values.why_not()) is not None:
        raise ConfigError(
            f"memory_map=True does not go with {reason}, which wants every "
            "variable's value at once. Load the model without it."
        )
    # What could be written to counts as memory of the process's own.
    access = mmap.ACCESS_COPY if at_rest is None else at_rest.access
    arrays = mapped_arrays(path, access)
    with (
        skeleton(path, [*arrays], lambda name, _: arrays[name]) as found,
        lazy_variables(values, at_rest=at_rest),
    ):
        yield found


def mapped_arrays(path: Path, access: int = mmap.ACCESS_COPY) -> dict[str, np.ndarray]:
    """Return arrays over a `.keras` file, by their paths in it.

    The few that are not numbers are read. Those of the optimizer are left out.

    Args:
        path: the file.
        access: of the memory map.

    Raises:
        ModelFileError: if the weights cannot be mapped.
    """
    try:
        found = weights_member(path)
        if found is None:
            raise ModelFileError(f"{str(path)!r} has no weights to be mapped.")
        if not is_mappable(path):
            raise ModelFileError(
                f"The weights in {str(path)!r} are compressed, so that they cannot be "
                "used where they lie. Write the file anew, as large as its weights: "
                "km.save_model(km.load_model(path), path, coding='stored')."
            )
        start, size = found[1], found[0].file_size
        with path.open("rb") as file:
            with h5py.File(Window(file, start, size), "r") as weights:
                stored = weights_in(weights)
                arrays = {
                    each.name: np.asarray(whole_array(weights[each.name], weights))
                    for each in stored
                    if not each.plain
                }
            whole = mmap.mmap(file.fileno(), 0, access=access)
    except ModelFileError:
        raise
    except DAMAGED as error:
        raise ModelFileError(
            f"{str(path)!r} is damaged: where its weights lie cannot be read."
        ) from error
    for each in stored:
        if each.plain:
            _check_within(path, each, size)
            arrays[each.name] = _array(whole, start, each)
    return arrays


def is_mappable(path: Path) -> bool:
    """Return whether the weights in a `.keras` file, if any, lie there as they are."""
    with zipfile.ZipFile(path) as archive:
        if WEIGHTS not in archive.namelist():
            return True
        is_stored = archive.getinfo(WEIGHTS).compress_type == zipfile.ZIP_STORED
        if not is_stored or is_coded(read_json(archive.read(CONFIG))):
            return False
    with opened_weights(path) as weights:
        return not (weights and any(each.filtered for each in datasets(weights)))


def _array(whole: mmap.mmap, start: int, dataset: Dataset) -> np.ndarray:
    if not dataset.extents:
        return np.zeros(dataset.shape, dataset.dtype).view(MappedArray)
    place = start + dataset.extents[0][0]
    return MappedArray.of(whole, place, dataset.shape, dataset.dtype)


def _check_within(path: Path, dataset: Dataset, size: int) -> None:
    for first, length in dataset.extents:
        if length != dataset.nbytes or first + length > size:
            raise ModelFileError(
                f"{str(path)!r} is damaged: the weight {dataset.name!r} does not lie "
                "within it."
            )
