"""What stands in a file in the place of the model whose weights are read otherwise.

Keras makes it from the file's config, and gets the plain model instead: the one class
of the saved model, with its own layers.
"""

import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from kerasmem.errors import ModelFileError
from kerasmem.files.archive import WEIGHTS, opened_weights
from kerasmem.files.datasets import Dataset, datasets, inflates, whole_array
from kerasmem.files.weights import uncoded
from kerasmem.graph.from_config import uncompiled
from kerasmem.records.plain import read_json
from kerasmem.units import MIB

CONFIG = "config.json"
_FREE_BYTES, _WIDEST = 32 * MIB, 8
"""What a layer may save beside its variables, and most bytes of an entry."""


def wrapped(config: dict[str, Any], name: str, module: str) -> dict[str, Any]:
    """Return the config of a file whose weights are read otherwise.

    Args:
        config: what `keras.saving.serialize_keras_object` tells of the model.
        name: of the class that stands in the model's place.
        module: the module it is in.
    """
    config = dict(config)
    # Where Keras looks for it, and leaves it out if asked for no compilation.
    compiled = config.pop("compile_config", None)
    return {
        "module": module,
        "class_name": name,
        "config": {"model": config},
        "registered_name": f"kerasmem>{name}",
        "compile_config": compiled,
    }


def is_coded(config: dict[str, Any]) -> bool:
    """Return whether the config of a file says that its weights are coded."""
    return config.get("class_name") == CodedModel.__name__


def write_skeleton(path: Path, small: Path, names: Iterable[str], name: str) -> None:
    """Write a file as another one is but for the weights: numbers are in their place.

    Args:
        path: a `.keras` file.
        small: where to.
        names: of its arrays.
        name: of what stands in the model's place, see `wrapped`.
    """
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(small, "w") as made:
        for member in archive.infolist():
            if member.filename == CONFIG:
                config = wrapped(read_json(archive.read(member)), name, __name__)
                config["config"] = uncompiled(config["config"])
                made.writestr(CONFIG, json.dumps(config))
            elif member.filename != WEIGHTS:
                made.writestr(member.filename, archive.read(member))
        with h5py.File(small.with_suffix(".h5"), "w") as weights:
            for number, each in enumerate(names):
                weights[each] = number
        made.write(small.with_suffix(".h5"), WEIGHTS)


def unwrapped(
    config: dict[str, Any], read: Callable[[np.ndarray, int], np.ndarray]
) -> Any:
    """Return the model within the config that `wrapped` made.

    Args:
        config: the inner one; of coded weights the model may be one level deeper.
        read: returns the weight that an array in the file stands for, if that has no
            more than so many bytes.
    """
    inner = config["model"]["config"] if is_coded(config["model"]) else config
    model = keras.saving.deserialize_keras_object(inner["model"])
    if not isinstance(model, keras.Model):
        raise ModelFileError("There is no model in a file of coded weights.")

    def load_own_variables(store: Any) -> None:
        # The model is the first to load. All others read from the same store.
        object.__delattr__(model, "load_own_variables")
        most_bytes = _largest_bytes(model)

        def get(store: Any, key: str) -> np.ndarray:
            return read(original.__getitem__(store, key), most_bytes)

        original = type(store)
        store.__class__ = type("Reading", (original,), {"__getitem__": get})
        model.load_own_variables(store)

    object.__setattr__(model, "load_own_variables", load_own_variables)
    return model


def _largest_bytes(model: Any) -> int:
    """Return the most bytes that an array of a model may have."""
    sizes = (math.prod(variable.shape) for variable in model.variables)
    return max(_FREE_BYTES, _WIDEST * max(sizes, default=0))


@keras.saving.register_keras_serializable("kerasmem")
class CodedModel:
    """Never an object: it only says that the weights are coded."""

    @staticmethod
    def wrap(config: dict[str, Any]) -> dict[str, Any]:
        """Return the config of a file with coded weights, of that of a model."""
        return wrapped(config, CodedModel.__name__, __name__)

    def get_config(self) -> dict[str, Any]:
        """Return nothing: Keras asks for it to register the class."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the model that was saved; its weights are decoded as it loads them."""
        return unwrapped(config, uncoded)


_NAME = "StreamedModel"


@contextmanager
def openable(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give the file that Keras loads a model from, and custom objects for that.

    Args:
        path: a model file. It is given itself unless it is a `.keras` file whose
            weights inflate.
    """
    if path.suffix != ".keras":
        yield path, {}
        return
    with opened_weights(path) as weights:
        if weights is not None and inflates(path, weights):
            found = datasets(weights)
            with tempfile.TemporaryDirectory() as folder:
                small = Path(folder) / path.name
                write_skeleton(path, small, [each.name for each in found], _NAME)
                yield small, {f"kerasmem>{_NAME}": _Streamed(weights, found)}
            return
    yield path, {}


class _Streamed:
    """What a skeleton's config means by the model; see `CodedModel`."""

    def __init__(self, weights: h5py.File, entries: Sequence[Dataset]) -> None:
        self._weights, self._datasets = weights, entries

    def from_config(self, config: dict[str, Any]) -> Any:
        """Return the model, whose weights are read one by one."""
        coded = is_coded(config["model"])

        def read(number: np.ndarray, most_bytes: int) -> np.ndarray:
            each = self._datasets[int(number)]
            dataset = self._weights[each.name]
            array = whole_array(dataset, self._weights, most_bytes)
            if coded:
                return uncoded(array, most_bytes)
            return np.asarray(array).view(each.dtype)

        return unwrapped(config, read)
