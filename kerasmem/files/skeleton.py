"""Skeletons of model files, for loading without reading all weights.

A skeleton is a `.keras` file with a number in place of each weight. Keras builds the
model from its config and loads the weights, and each number is replaced by an array.
The array is read separately (`streamed_weights`), mapped (`mapped_weights`), or only
has a shape and a type (`described_weights`). `CodedModel` decodes the weights of coded
files in the same way when Keras opens them.

The optimizer is reset if weights are mapped or described. Its state is as large as the
weights and is needed at once.
"""

import json
import math
import mmap
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.at_rest import Offloaded
from kerasmem.backends.lazy import lazy_variables
from kerasmem.backends.mapped import MappedArray
from kerasmem.backends.patching import patch_method
from kerasmem.errors import ConfigError, ModelFileError
from kerasmem.files.archive import (
    CONFIG,
    DAMAGED,
    WEIGHTS,
    Window,
    opened_weights,
    weights_member,
)
from kerasmem.files.chunks import type_of
from kerasmem.files.datasets import (
    Dataset,
    arrays_in,
    datasets,
    form_of,
    inflates,
    weights_in,
    whole_array,
)
from kerasmem.files.weights import uncoded
from kerasmem.graph.from_config import uncompiled
from kerasmem.records.plain import read_json
from kerasmem.units import MIB

_FREE_BYTES, _WIDEST = 32 * MIB, 8
"""Bytes that a layer may save in addition to its variables, and maximum bytes per
entry."""

_NAME = "Skeleton"

Read = Callable[[str, int], np.ndarray]
"""Returns an array by its path in the file and its maximum size in bytes."""


@contextmanager
def skeleton(
    path: Path, names: Sequence[str], read: Read
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the skeleton of a `.keras` file and the custom objects to load it.

    `read` returns the array for each weight in `names`.
    """

    def model_in(config: dict[str, Any]) -> Any:
        return _unwrapped(config, lambda number, most: read(names[int(number)], most))

    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / path.name
        with (
            zipfile.ZipFile(path) as archive,
            zipfile.ZipFile(small, "w") as small_archive,
        ):
            for name in archive.namelist():
                if name == CONFIG:
                    config = _wrapped(read_json(archive.read(CONFIG)), _NAME)
                    config["config"] = uncompiled(config["config"])
                    small_archive.writestr(CONFIG, json.dumps(config))
                elif name != WEIGHTS:
                    small_archive.writestr(name, archive.read(name))
            with h5py.File(small.with_suffix(".h5"), "w") as weights:
                for number, name in enumerate(names):
                    weights[name] = number
            small_archive.write(small.with_suffix(".h5"), WEIGHTS)
        yield small, {f"kerasmem>{_NAME}": SimpleNamespace(from_config=model_in)}


@contextmanager
def streamed_weights(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the file that Keras loads, and custom objects.

    The file is `path` itself, or a skeleton if the weights of a `.keras` file inflate.
    The skeleton reads weights one by one.
    """
    with ExitStack() as scope:
        is_archive = path.suffix == ".keras"
        weights = scope.enter_context(opened_weights(path)) if is_archive else None
        if weights is None or not inflates(weights, path.stat().st_size):
            scope.close()
            yield path, {}
            return
        with zipfile.ZipFile(path) as archive:
            has_codes = is_coded(read_json(archive.read(CONFIG)))

        def read(name: str, most_bytes: int) -> np.ndarray:
            dataset = weights[name]
            array = np.asarray(whole_array(dataset, weights, most_bytes))
            array = array.view(type_of(dataset))
            return uncoded(array, most_bytes) if has_codes else array

        yield scope.enter_context(skeleton(path, [*arrays_in(weights)], read))


@contextmanager
def described_weights(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the skeleton of a file whose weights only have a shape and a type.

    Variables of the model take no memory, also after the scope.
    """
    with opened_weights(path) as weights:
        if weights is None:
            raise ModelFileError("the file has no weights.")
        arrays = {
            each.name: _described_array(weights, each) for each in weights_in(weights)
        }
    with (
        skeleton(path, [*arrays], lambda name, _: arrays[name]) as skeleton_and_objects,
        lazy_variables(current().lazy_values(), described=True),
    ):
        yield skeleton_and_objects


def _described_array(weights: h5py.File, each: Dataset) -> np.ndarray:
    if each.dtype.hasobject:  # strings
        return np.asarray(weights[each.name][()])
    return described_array(*(form_of(weights, each) or (each.shape, each.dtype)))


def described_array(
    shape: tuple[int, ...], dtype: np.dtype, name: str | None = None
) -> MappedArray:
    """Returns a named array of a shape and type that takes no memory."""
    array = np.broadcast_to(np.zeros((), dtype), shape).view(MappedArray)
    array.name = name
    return array


@contextmanager
def mapped_weights(
    path: Path, at_rest: Offloaded | None = None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields a file that Keras loads with mapped weights, and custom objects.

    Within the scope, variables get their values on first access. `at_rest` is the
    storage for variables whose values stay in files.

    Raises `ModelFileError` if the weights cannot be mapped, and `ConfigError` if the
    environment needs the values of variables at once.
    """
    values = current().lazy_values()
    if (reason := values.why_not()) is not None:
        raise ConfigError(
            f"memory_map=True is not possible with {reason}, which needs the value of "
            "every variable at once. Next: load the model without memory_map."
        )
    # Writable mappings count as memory of the process.
    access = mmap.ACCESS_COPY if at_rest is None else at_rest.access
    arrays = mapped_arrays(path, access)
    with (
        skeleton(path, [*arrays], lambda name, _: arrays[name]) as skeleton_and_objects,
        lazy_variables(values, at_rest=at_rest),
    ):
        yield skeleton_and_objects


def mapped_arrays(path: Path, access: int = mmap.ACCESS_COPY) -> dict[str, np.ndarray]:
    """Returns memory-mapped arrays of a `.keras` file by path.

    Arrays that are not numeric are read. Arrays of the optimizer are omitted.
    """
    try:
        member_and_start = weights_member(path)
        if member_and_start is None:
            raise ModelFileError(f"{str(path)!r} has no weights to map.")
        if not is_mappable(path):
            raise ModelFileError(
                f"The weights in {str(path)!r} are compressed and cannot be mapped. "
                "Next: save them uncompressed with "
                "km.save_model(km.load_model(path), path, coding='stored')."
            )
        start, size = member_and_start[1], member_and_start[0].file_size
        with path.open("rb") as file:
            with h5py.File(Window(file, start, size), "r") as weights:
                tensors = weights_in(weights)
                arrays = {
                    each.name: np.asarray(whole_array(weights[each.name], weights))
                    for each in tensors
                    if not each.plain
                }
            whole = mmap.mmap(file.fileno(), 0, access=access)
    except ModelFileError:
        raise
    except DAMAGED as error:
        raise ModelFileError(
            f"{str(path)!r} is damaged: its weights cannot be located."
        ) from error
    for each in tensors:
        if each.plain:
            _check_within(path, each, size)
            arrays[each.name] = _array(whole, start, each)
    return arrays


def is_mappable(path: Path) -> bool:
    """Returns whether all weights in a `.keras` file are uncompressed."""
    with zipfile.ZipFile(path) as archive:
        if WEIGHTS not in archive.namelist():
            return True
        is_stored = archive.getinfo(WEIGHTS).compress_type == zipfile.ZIP_STORED
        if not is_stored or is_coded(read_json(archive.read(CONFIG))):
            return False
    with opened_weights(path) as weights:
        return not (weights and any(each.filtered for each in datasets(weights)))


def _array(whole: mmap.mmap, start: int, dataset: Any) -> np.ndarray:
    if not dataset.extents:
        return np.zeros(dataset.shape, dataset.dtype).view(MappedArray)
    place = start + dataset.extents[0][0]
    return MappedArray.of(whole, place, dataset.shape, dataset.dtype)


def _check_within(path: Path, dataset: Any, size: int) -> None:
    for first, length in dataset.extents:
        if length != dataset.nbytes or first + length > size:
            raise ModelFileError(
                f"{str(path)!r} is damaged: the weight {dataset.name!r} is outside "
                "the file."
            )


@keras.saving.register_keras_serializable("kerasmem")
class CodedModel:
    """Marks a config whose weights are coded. Never instantiated."""

    @staticmethod
    def wrap(config: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of a file with coded weights."""
        return _wrapped(config, CodedModel.__name__)

    def get_config(self) -> dict[str, Any]:
        """Returns an empty config. Keras requires this method for registration."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Returns the saved model, whose weights are decoded during loading."""
        return _unwrapped(config, uncoded)


def is_coded(config: dict[str, Any]) -> bool:
    """Returns whether the config of a file marks its weights as coded."""
    return config.get("class_name") == CodedModel.__name__


def _wrapped(config: dict[str, Any], name: str) -> dict[str, Any]:
    config = dict(config)
    # Keras reads the compile config at this level and skips it with `compile=False`.
    compile_config = config.pop("compile_config", None)
    return {
        "module": __name__,
        "class_name": name,
        "config": {"model": config},
        "registered_name": f"kerasmem>{name}",
        "compile_config": compile_config,
    }


def _unwrapped(
    config: dict[str, Any], read: Callable[[np.ndarray, int], np.ndarray]
) -> Any:
    """Returns the model in a config of `_wrapped`, and decodes arrays with `read`.

    The model of coded weights may be one level deeper.
    """
    inner = config["model"]["config"] if is_coded(config["model"]) else config
    model = keras.saving.deserialize_keras_object(inner["model"])
    if not isinstance(model, keras.Model):
        raise ModelFileError("A file of coded weights contains no model.")

    def load(load_own_variables: Callable[[Any], None], store: Any) -> None:
        # The model loads first, and its layers read from the same store.
        unpatch()
        sizes = (math.prod(variable.shape) for variable in model.variables)
        most_bytes = max(_FREE_BYTES, _WIDEST * max(sizes, default=0))

        def get(store: Any, key: str) -> np.ndarray:
            return read(original.__getitem__(store, key), most_bytes)

        original = type(store)
        # No issue known: Keras 3.15 creates the store without a hook.
        store.__class__ = type("Reading", (original,), {"__getitem__": get})
        load_own_variables(store)

    # No issue known: Keras 3.15 passes the store to no other method before the layers.
    unpatch = patch_method(model, "load_own_variables", load)
    return model
