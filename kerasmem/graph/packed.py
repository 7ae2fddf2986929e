"""A model as bytes, on its way from one process to another."""

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from kerasmem.graph.clone import live_objects, settings_of
from kerasmem.graph.optimizer import fresh_optimizer


@dataclass(frozen=True)
class PackedModel:
    """What a model of equal state is made of; it can be pickled if `objects` can.

    Args:
        file: what Keras saves of it, without the state of its optimizer.
        settings: config of its `compile`; None if it was not compiled.
        objects: the classes and functions of the user's own in it.
    """

    file: bytes
    settings: dict[str, Any] | None
    objects: dict[str, Any]

    def unpacked(self) -> Any:
        """Return the model, compiled with a fresh optimizer if it was compiled."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(self.file)
            # Made of a live object by `packed`: a lambda in it is the caller's own.
            model = keras.models.load_model(
                path, custom_objects=self.objects, compile=False, safe_mode=False
            )
        if self.settings is not None:
            model.compile(**settings_of(self.settings, self.objects))
        return model


def packed(model: Any) -> PackedModel:
    """Return a built model that Keras can save, packed."""
    objects = live_objects(model)
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as folder,
        fresh_optimizer(model, built=False),
    ):
        warnings.filterwarnings("ignore", message=".*includes a `lambda`")
        path = Path(folder) / "model.keras"
        model.save(path)
        file = path.read_bytes()
    settings = model.get_compile_config() if model.compiled else None
    return PackedModel(file, settings, objects)
