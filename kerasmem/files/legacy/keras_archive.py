"""`.keras` files that Keras 2 wrote."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import h5py

from kerasmem.errors import ModelFileError
from kerasmem.files.legacy.file import LegacyFile
from kerasmem.files.legacy.hdf5 import whole_array
from kerasmem.files.legacy.parts import Part
from kerasmem.files.legacy.tree import TreeWeights

_WEIGHTS = "model.weights.h5"


def is_legacy_archive(path: Path) -> bool:
    """Return True for a `.keras` file that Keras 2 wrote."""
    with zipfile.ZipFile(path) as archive:
        metadata = json.loads(archive.read("metadata.json"))
    return str(metadata.get("keras_version", "3")).startswith("2")


def read_archive(path: Path) -> LegacyFile:
    """Return what a `.keras` file of Keras 2 holds.

    Raises:
        ModelFileError: if it has no weights.
    """
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
        if _WEIGHTS not in archive.namelist():
            raise ModelFileError(
                f"{str(path)!r} has no weights: {_WEIGHTS} is missing."
            )
        with h5py.File(io.BytesIO(archive.read(_WEIGHTS))) as file:
            root = _part(file)
    return LegacyFile(config, config.get("compile_config"), TreeWeights(root))


def _part(group: Any) -> Part:
    arrays = group.get("vars", {})
    names = sorted(arrays, key=int)
    numbered = {name: whole_array(arrays[name], group.file) for name in names}
    inner = {
        name: _part(item)
        for name, item in group.items()
        if name != "vars" and isinstance(item, h5py.Group)
    }
    return Part(numbered, inner)
