"""What is handed in to be compressed: opened, compiled, measured as a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from kerasmem.compression.measure import size_of
from kerasmem.compression.offloading import Room
from kerasmem.errors import ConfigError, as_received
from kerasmem.files.contents import FileSize, file_size
from kerasmem.files.load import load_model
from kerasmem.graph.clone import compile_settings, to_read
from kerasmem.graph.from_config import compile_with
from kerasmem.graph.outputs import as_loss


@dataclass(frozen=True)
class Loaded:
    """A model that was loaded for `compress` alone, which takes it as it is.

    Args:
        model: the model; it is compiled anew.
        path: of its file, whose size the report tells.
    """

    model: Any
    path: str | Path


def open_given(model_or_path: Any, custom_objects: Any, *, evaluated: bool) -> Any:
    """Return a model to make a copy of.

    A model that is compiled anew or evaluated is not the one that was handed in.
    """
    if isinstance(model_or_path, keras.Model):
        return to_read(model_or_path) if evaluated else model_or_path
    if isinstance(model_or_path, Loaded | Room):
        return model_or_path.model
    if isinstance(model_or_path, str | Path):
        return load_model(model_or_path, custom_objects)
    raise ConfigError(
        "Expected a keras.Model or the path of a saved one. Received: "
        f"model_or_path={as_received(model_or_path)}."
    )


def original_size(model_or_path: Any) -> FileSize:
    """Returns the size of the input file, or of the file that Keras writes."""
    if isinstance(model_or_path, keras.Model):
        return size_of(model_or_path, stored=True)
    is_loaded = isinstance(model_or_path, Loaded)
    return file_size(model_or_path.path if is_loaded else model_or_path)


def compile_anew(model: Any, loss: Any, metrics: Any) -> None:
    """Compile `model` anew, with a loss and metrics of the caller's if given."""
    settings = compile_settings(model) or {}
    if loss is not None:
        settings["loss"] = as_loss(loss)
    if metrics is not None:
        settings["metrics"] = metrics
    if settings.get("loss") is not None:
        compile_with(model, {"optimizer": "adam", **settings})
    elif metrics is not None:
        raise ConfigError(
            f"The model {model.name!r} has no loss. Give loss= beside metrics=."
        )
