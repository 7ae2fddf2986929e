"""The skeleton of a model file: what Keras loads when weights are read otherwise.

A skeleton is a `.keras` file with a number in place of each weight. Keras builds the
model from its config and loads the weights from it; each number is replaced by an
array. That array is read alone (`streamed_weights`), lies over the file
(`mapped_weights`), or only has a shape and a type (`described_weights`). `CodedModel`
does the same in files of coded weights, which Keras opens itself.

An optimizer begins anew where weights are mapped or described: what it learned is as
large as the weights, and is needed for all of them at once.
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
    """Give the file that Keras loads a model from, and custom objects for that.

    It is `path` itself unless that is a `.keras` file whose weights inflate. Then they
    are read one by one.
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
    """Give the skeleton of a file whose weights only have a shape and a type.

    Within the scope, and after it, variables take no memory.

    Raises:
        ModelFileError: if the file has no weights.
    """
    with opened_weights(path) as weights:
        if weights is None:
            raise ModelFileError("it has no weights.")
        arrays = {
            each.name: _described_array(weights, each) for each in weights_in(weights)
        }
    with (
        skeleton(path, [*arrays], lambda name, _: arrays[name]) as skeleton_and_objects,
        lazy_variables(current().lazy_values(), described=True),
    ):
        yield skeleton_and_objects


def _described_array(weights: h5py.File, each: Dataset) -> np.ndarray:
    if each.dtype.hasobject:  # words
        return np.asarray(weights[each.name][()])
    return described_array(*(form_of(weights, each) or (each.shape, each.dtype)))


def described_array(
    shape: tuple[int, ...], dtype: np.dtype, name: str | None = None
) -> MappedArray:
    """Return an array of a shape and a type that takes no memory, and has a name."""
    array = np.broadcast_to(np.zeros((), dtype), shape).view(MappedArray)
    array.name = name
    return array


@contextmanager
def mapped_weights(
    path: Path, at_rest: Offloaded | None = None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give a file that Keras loads the model from, and custom objects for that.

    Within the scope no variable gets a value before somebody looks at it.

    Args:
        path: a `.keras` file with plain weights.
        at_rest: for variables that go on having their values in files.

    Raises:
        ModelFileError: if the weights cannot be mapped.
        ConfigError: if variables have values at once here.
    """
    values = current().lazy_values()
    if (reason := values.why_not()) is not None:
        raise ConfigError(
            f"memory_map=True does not go with {reason}, which wants every "
            "variable's value at once. Load the model without it."
        )
    # What could be written to counts as memory of the process's own.
    access = mmap.ACCESS_COPY if at_rest is None else at_rest.access
    arrays = mapped_arrays(path, access)
    with (
        skeleton(path, [*arrays], lambda name, _: arrays[name]) as skeleton_and_objects,
        lazy_variables(values, at_rest=at_rest),
    ):
        yield skeleton_and_objects


def mapped_arrays(path: Path, access: int = mmap.ACCESS_COPY) -> dict[str, np.ndarray]:
    """Return arrays over a `.keras` file, by their paths in it.

    The few that are not numbers are read. Those of the optimizer are left out.

    Args:
        path: the file.
        access: of the memory map.

    Raises:
        ModelFileError: if the weights cannot be mapped.
    """
    try:
        member_and_start = weights_member(path)
        if member_and_start is None:
            raise ModelFileError(f"{str(path)!r} has no weights to be mapped.")
        if not is_mappable(path):
            raise ModelFileError(
                f"The weights in {str(path)!r} are compressed, so that they cannot be "
                "used where they lie. Write the file anew, as large as its weights: "
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
            f"{str(path)!r} is damaged: where its weights lie cannot be read."
        ) from error
    for each in tensors:
        if each.plain:
            _check_within(path, each, size)
            arrays[each.name] = _array(whole, start, each)
    return arrays


def is_mappable(path: Path) -> bool:
    """Return whether the weights in a `.keras` file, if any, lie there as they are."""
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
                f"{str(path)!r} is damaged: the weight {dataset.name!r} does not lie "
                "within it."
            )


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
    config = dict(config)
    # Where Keras looks for it, and leaves it out if asked for no compilation.
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
        # No issue known: Keras 3.15 makes the store itself, of a class of its own.
        store.__class__ = type("Reading", (original,), {"__getitem__": get})
        load_own_variables(store)

    # No issue known: nothing else in Keras 3.15 sees the store before the layers do.
    unpatch = patch_method(model, "load_own_variables", load)
    return model
