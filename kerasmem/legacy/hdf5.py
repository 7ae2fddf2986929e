"""`.h5` files that Keras 2 wrote."""

from pathlib import Path
from typing import Any

import h5py

from kerasmem.errors import ModelFileError
from kerasmem.files.datasets import whole_array
from kerasmem.files.keras_2 import text_of
from kerasmem.legacy.file import LegacyFile
from kerasmem.legacy.flat import FlatWeights, Named
from kerasmem.records.plain import read_json


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
        read_json(text_of(config)),
        None if training is None else read_json(text_of(training)),
        FlatWeights(layers),
    )


def _arrays(group: Any) -> list[Named]:
    names = _texts(group, "weight_names")
    return [(name, whole_array(group[name], group.file)) for name in names]


def _texts(group: Any, name: str) -> list[str]:
    """Return a list of names, which a long one is cut into several attributes for."""
    if name in group.attrs:
        return [text_of(value) for value in group.attrs[name]]
    found: list[str] = []
    while f"{name}{len(found)}" in group.attrs:
        found.append(f"{name}{len(found)}")
    return [text_of(value) for part in found for value in group.attrs[part]]
