"""`.h5` files that Keras 2 wrote."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.coding import LARGE_BYTES, MOST_TIMES
from kerasmem.files.legacy.file import LegacyFile
from kerasmem.files.legacy.flat import FlatWeights, Named
from kerasmem.records.plain import read_json

_VERSIONS = ("1.", "2.")


def is_legacy_h5(path: Path) -> bool:
    """Return True for a file that Keras 2, or 1, wrote."""
    with h5py.File(path) as file:
        return _text(file.attrs.get("keras_version", "2.")).startswith(_VERSIONS)


def read_h5(path: Path) -> LegacyFile:
    """Return what an `.h5` file holds.

    Raises:
        ModelFileError: if it holds weights alone, or was cut off.
    """
    with h5py.File(path) as file:
        config = file.attrs.get("model_config")
        if config is None or "model_weights" not in file:
            raise ModelFileError(
                f"{str(path)!r} holds no whole model, perhaps weights alone. Expected: "
                "a file that model.save wrote."
            )
        training = file.attrs.get("training_config")
        group = file["model_weights"]
        names = _texts(group, "layer_names")
        layers = {name: _arrays(group[name]) for name in names}
    return LegacyFile(
        read_json(_text(config)),
        None if training is None else read_json(_text(training)),
        FlatWeights(layers),
    )


def _arrays(group: Any) -> list[Named]:
    names = _texts(group, "weight_names")
    return [(name, whole_array(group[name], group.file)) for name in names]


def whole_array(
    dataset: Any, file: h5py.File, most_bytes: int | None = None
) -> np.ndarray:
    """Return the array in a dataset.

    Args:
        dataset: of a file.
        file: the file.
        most_bytes: that the array may have; None for what any file may hold.

    Raises:
        ModelFileError: if it is none, leads to another file, or is a bomb.
    """
    if not isinstance(dataset, h5py.Dataset):
        raise ModelFileError(f"{dataset.name!r} is no array.")
    if dataset.external or dataset.is_virtual or dataset.file != file:
        raise ModelFileError(f"{dataset.name!r} is kept outside of the file.")
    if most_bytes is None:
        most_bytes = max(LARGE_BYTES, MOST_TIMES * dataset.id.get_storage_size())
    if dataset.nbytes > most_bytes:
        raise ModelFileError(
            f"{dataset.name!r} would take {dataset.nbytes} bytes, of which the file "
            f"has {dataset.id.get_storage_size()}."
        )
    return dataset[()]


def _texts(group: Any, name: str) -> list[str]:
    """Return a list of names, which a long one is cut into several attributes for."""
    if name in group.attrs:
        return [_text(value) for value in group.attrs[name]]
    found: list[str] = []
    while f"{name}{len(found)}" in group.attrs:
        found.append(f"{name}{len(found)}")
    return [_text(value) for part in found for value in group.attrs[part]]


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)
