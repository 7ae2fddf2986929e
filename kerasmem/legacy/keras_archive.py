"""`.keras` files that Keras 2 wrote."""

import zipfile
from pathlib import Path
from typing import Any

import h5py

from kerasmem.errors import ModelFileError
from kerasmem.files.datasets import whole_array
from kerasmem.files.declared import check_declared
from kerasmem.files.members import WEIGHTS, opened_weights
from kerasmem.legacy.file import LegacyFile
from kerasmem.legacy.tree import Part, TreeWeights
from kerasmem.records.plain import read_json


def read_archive(path: Path) -> LegacyFile:
    """Return what a `.keras` file of Keras 2 holds.

    Raises:
        ModelFileError: if it has no weights.
    """
    with zipfile.ZipFile(path) as archive:
        config = read_json(archive.read("config.json"))
    with opened_weights(path) as file:
        if file is None:
            raise ModelFileError(f"{str(path)!r} has no weights: {WEIGHTS} is missing.")
        check_declared(path, file)
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
