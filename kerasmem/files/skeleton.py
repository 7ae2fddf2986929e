"""The skeleton of a model file: what Keras loads when weights are read otherwise.

A skeleton is a `.keras` file with a number in place of each weight. Keras builds the
model from its config and loads the weights from it; each number is replaced by an
array that `read` returns. `CodedModel` does the same in files of coded weights, which
Keras opens itself.
"""

import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import keras
import numpy as np

from kerasmem.backends.patching import patch_method
from kerasmem.errors import ModelFileError
from kerasmem.files.archive import CONFIG, WEIGHTS
from kerasmem.files.weights import uncoded
from kerasmem.graph.from_config import uncompiled
from kerasmem.records.plain import read_json
from kerasmem.units import MIB

_FREE_BYTES, _WIDEST = 32 * MIB, 8
"""Bytes that a layer may save beside its variables; most bytes of an entry."""

_NAME = "Skeleton"

Read = Callable[[str, int], np.ndarray]
"""Returns an array by its path in the file, unless it has more than so many bytes."""


@contextmanager
def skeleton(
    path: Path, names: Sequence[str], read: Read
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give the skeleton of a `.keras` file, and custom objects to load it with.

    Args:
        path: the file.
        names: paths of its arrays.
        read: returns the array that a weight gets.
    """

    def model_in(config: dict[str, Any]) -> Any:
        return _unwrapped(config, lambda number, most: read(names[int(number)], most))

    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / path.name
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(small, "w") as made:
            for name in archive.namelist():
                if name == CONFIG:
                    config = _wrapped(read_json(archive.read(CONFIG)), _NAME)
                    config["config"] = uncompiled(config["config"])
                    made.writestr(CONFIG, json.dumps(config))
                elif name != WEIGHTS:
                    made.writestr(name, archive.read(name))
            with h5py.File(small.with_suffix(".h5"), "w") as weights:
                for number, name in enumerate(names):
                    weights[name] = number
            made.write(small.with_suffix(".h5"), WEIGHTS)
        yield small, {f"kerasmem>{_NAME}": SimpleNamespace(from_config=model_in)}


@keras.saving.register_keras_serializable("kerasmem")
class CodedModel:
    """Never an object: it only says that the weights are coded."""

    @staticmethod
    def wrap(config: dict[str, Any]) -> dict[str, Any]:
        """Return the config of a file with coded weights, of that of a model."""
        return _wrapped(config, CodedModel.__name__)

    def get_config(self) -> dict[str, Any]:
        """Return nothing: Keras asks for it to register the class."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the model that was saved; its weights are decoded as it loads them."""
        return _unwrapped(config, uncoded)


def is_coded(config: dict[str, Any]) -> bool:
    """Return whether the config of a file says that its weights are coded."""
    return config.get("class_name") == CodedModel.__name__


def _wrapped(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the config of a file in which another class is in the model's place."""
    config = dict(config)
    # Where Keras looks for it, and leaves it out if asked for no compilation.
    compiled = config.pop("compile_config", None)
    return {
        "module": __name__,
        "class_name": name,
        "config": {"model": config},
        "registered_name": f"kerasmem>{name}",
        "compile_config": compiled,
    }


def _unwrapped(
    config: dict[str, Any], read: Callable[[np.ndarray, int], np.ndarray]
) -> Any:
    """Return the model within the config that `_wrapped` made.

    Args:
        config: the inner one; of coded weights the model may be one level deeper.
        read: returns the weight that an array in the file stands for, if that has no
            more than so many bytes.
    """
    inner = config["model"]["config"] if is_coded(config["model"]) else config
    model = keras.saving.deserialize_keras_object(inner["model"])
    if not isinstance(model, keras.Model):
        raise ModelFileError("There is no model in a file of coded weights.")

    def load(load_own_variables: Callable[[Any], None], store: Any) -> None:
        # The model is the first to load. All others read from the same store.
        unpatch()
        sizes = (math.prod(variable.shape) for variable in model.variables)
        most_bytes = max(_FREE_BYTES, _WIDEST * max(sizes, default=0))

        def get(store: Any, key: str) -> np.ndarray:
            return read(original.__getitem__(store, key), most_bytes)

        original = type(store)
        store.__class__ = type("Reading", (original,), {"__getitem__": get})
        load_own_variables(store)

    unpatch = patch_method(model, "load_own_variables", load)
    return model
