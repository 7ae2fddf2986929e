"""Files that Keras 2 wrote: how one knows them, and what Keras 3 reads them with.

What reads them is `kerasmem.extras.legacy`, imported when the first such file comes.
"""

import zipfile
from pathlib import Path
from typing import Any

import h5py
import keras

from kerasmem.errors import ModelFileError
from kerasmem.files.archive import DAMAGED
from kerasmem.records.plain import read_json


@keras.saving.register_keras_serializable("kerasmem")
def hard_sigmoid_of_keras_2(x: Any) -> Any:
    """Return `clip(0.2 x + 0.5, 0, 1)`; that of Keras 3 has a slope of 1/6.

    A converted model is saved with it, and opened where nothing legacy is imported.
    """
    return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def is_legacy(path: Path) -> bool:
    """Return True if Keras 2 wrote the file, or it is the folder of a SavedModel.

    Raises:
        ModelFileError: if the file is damaged.
    """
    if path.is_dir():
        return True
    try:
        is_archive = path.suffix == ".keras"
        version = _of_archive(path) if is_archive else _of_h5(path)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error
    return version.startswith(("1.", "2."))


def text_of(value: Any) -> str:
    """Return the text in an attribute of an HDF5 file, which may be bytes."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _of_archive(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        metadata = read_json(archive.read("metadata.json"))
    return str(metadata.get("keras_version", "3."))


def _of_h5(path: Path) -> str:
    with h5py.File(path) as file:
        return text_of(file.attrs.get("keras_version", "2."))
