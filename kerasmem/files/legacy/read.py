"""A model of Keras 2 in a file, as a model of Keras 3."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasmem.errors import KerasMemWarning, ModelFileError
from kerasmem.files.legacy.assign import Assignment
from kerasmem.files.legacy.file import LegacyFile
from kerasmem.files.legacy.graph import check_is_model, make
from kerasmem.files.legacy.hdf5 import is_legacy_h5, read_h5
from kerasmem.files.legacy.keras_archive import is_legacy_archive, read_archive
from kerasmem.files.legacy.made import Made
from kerasmem.files.legacy.saved_model import read_saved_model
from kerasmem.files.members import DAMAGED


def is_legacy(path: Path) -> bool:
    """Return True if Keras 2 wrote the file, or it is the folder of a SavedModel.

    Raises:
        ModelFileError: if the file is damaged.
    """
    if path.is_dir():
        return True
    try:
        is_archive = path.suffix == ".keras"
        return is_legacy_archive(path) if is_archive else is_legacy_h5(path)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error


def load_legacy(
    path: Path, custom_objects: Mapping[str, Any]
) -> tuple[Made, dict[str, Any] | None]:
    """Return the model made of a file, not compiled, and what it was compiled with.

    Raises:
        ModelFileError: if it cannot be had; the layer and the reason are named.
    """
    try:
        file = _read(path)
        made = make(file.config, custom_objects)
        check_is_model(made)
        assignment = Assignment()
        file.weights.put_into(made, assignment)
        assignment.check_complete(made.layer)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} could not be loaded: {error}") from error
    if made.is_rounded:
        warnings.warn(
            f"{str(path)!r} comes from quantization-aware training: its weights are "
            'there as trained, without the rounding. Next: km.Quantize("int8-static").',
            KerasMemWarning,
            stacklevel=4,
        )
    return made, file.training


def _read(path: Path) -> LegacyFile:
    if path.is_dir():
        return read_saved_model(path)
    return read_archive(path) if path.suffix == ".keras" else read_h5(path)
