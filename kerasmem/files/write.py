"""Writes the archive of a model while Keras saves its weights.

Keras traverses the model and saves each array to a store. Numeric arrays are written to
the HDF5 file immediately, so that no array is kept in memory or written twice.
"""

import json
import math
import shutil
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

# The private class is the only way to intercept saved arrays, see `save_parts`.
from keras.src.saving.saving_lib import H5IOStore  # noqa: TID251

from kerasmem.backends import current
from kerasmem.backends.lazy import (
    first_value,
    is_made_of_zeros,
    lazy_variables,
    source_at_rest,
)
from kerasmem.backends.mapped import MappedArray
from kerasmem.backends.variables import VariableShape
from kerasmem.errors import KerasMemError, OutputError
from kerasmem.files.archive import CONFIG, WEIGHTS, opened_weights
from kerasmem.files.chunks import WrittenArray
from kerasmem.files.load import first_reason
from kerasmem.files.skeleton import CodedModel
from kerasmem.files.weights import (
    ALIGNMENT_BYTES,
    Coding,
    WeightsFile,
    is_numbers,
)
from kerasmem.graph.clone import lambda_errors
from kerasmem.graph.saving import fresh_optimizer, save_parts, save_untrained
from kerasmem.graph.values import nbytes
from kerasmem.stages import Progress
from kerasmem.types import Model

_PIECE = 1 << 20

_MOST_DEFLATED_TWICE = 4 << 20
"""File size up to which the HDF5 overhead of small arrays is worth a second
deflation."""


@dataclass(frozen=True)
class WrittenModel:
    """Record of a written model, for verification.

    `arrays` contains the numeric arrays, `variables` the variables saved as arrays, and
    `words` all other arrays, by path in the file.
    """

    coding: Coding
    arrays: dict[str, WrittenArray]
    variables: dict[str, Any] = field(default_factory=dict)
    words: dict[str, np.ndarray] = field(default_factory=dict)


def write_model(
    model: Model,
    path: Path,
    coding: Coding,
    *,
    include_optimizer: bool = False,
) -> WrittenModel:
    """Writes the file of `km.save_model` without verification.

    The directory needs space for a second file of this size.

    Raises `ModelError` if the optimizer cannot be recreated, and `OutputError` if Keras
    cannot save the model.
    """
    if type(model).save is not keras.Model.save:
        return _write_as_saved(model, path, coding)
    rest, weights = path.with_suffix(".rest"), path.with_suffix(".h5")
    optimizer = None if include_optimizer else _new_optimizer(model)
    method = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method, compresslevel=9) as archive:
        progress = Progress("writing the file", sum(map(nbytes, model.variables)))
        with WeightsFile(weights, coding, progress) as file:
            record = WrittenModel(coding, file.written)
            store = _HandingOver(rest, file, record)
            try:
                with _errors_of_saving(model.name):
                    wrap = _coded if coding == "entropy" else str
                    save_parts(model, archive, store, optimizer, wrap)
                record.words.update(file.put_rest(store.h5_file))
            finally:
                store.close()
        _write_weights(archive, weights, coding)
    rest.unlink()
    return record


def _write_as_saved(model: Model, path: Path, coding: Coding) -> WrittenModel:
    """Recodes the arrays of the file written by the model's own `save`."""
    own, weights = path.with_name("own.keras"), path.with_suffix(".h5")
    with _errors_of_saving(model.name):
        model.save(own)
    progress = Progress("writing the file", own.stat().st_size)
    with (
        zipfile.ZipFile(own) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        with (
            opened_weights(own) as arrays,
            WeightsFile(weights, coding, progress) as file,
        ):
            record = WrittenModel(coding, file.written)
            if arrays is not None:
                record.words.update(file.put_rest(arrays))
        for name in source.namelist():
            if name == WEIGHTS:
                continue
            content: bytes | str = source.read(name)
            if name == CONFIG and coding == "entropy":
                content = _coded(source.read(name).decode())
            archive.writestr(name, content)
        _write_weights(archive, weights, coding)
    own.unlink()
    return record


def _write_weights(archive: zipfile.ZipFile, weights: Path, coding: Coding) -> None:
    if coding == "stored" or weights.stat().st_size > _MOST_DEFLATED_TWICE:
        _write_aligned(archive, weights)
    else:
        archive.write(weights, WEIGHTS)
    weights.unlink()


def _coded(config: str) -> str:
    return json.dumps(CodedModel.wrap(json.loads(config)))


def _write_aligned(archive: zipfile.ZipFile, new: Path) -> None:
    member = zipfile.ZipInfo.from_file(new, WEIGHTS)
    member.compress_type = zipfile.ZIP_STORED
    # The data follows a header of 30 bytes, the name and an optional ZIP64 entry. A
    # padding entry in the extra field aligns the data.
    large = member.file_size >= 1 << 31
    start = archive.start_dir + 30 + len(WEIGHTS) + (20 if large else 0) + 4
    # At a multiple of 512, HDF5 would mistake the archive for an HDF5 file.
    missing = (ALIGNMENT_BYTES - start) % (2 * ALIGNMENT_BYTES)
    member.extra = struct.pack("<HH", 0xD935, missing) + bytes(missing)
    with (
        new.open("rb") as reader,
        archive.open(member, "w", force_zip64=large) as writer,
    ):
        shutil.copyfileobj(reader, writer, _PIECE)


class _HandingOver(H5IOStore):
    """A Keras store that writes numeric arrays to a `WeightsFile`."""

    def __init__(self, path: Path, into: WeightsFile, written: WrittenModel) -> None:
        super().__init__(path, mode="w")
        self.into = into
        self.written = written

    def __setitem__(self, key: str, value: Any) -> None:
        form, blocks = _entries(value)
        if not is_numbers(form[1]):
            super().__setitem__(key, value)
            return
        if not self._h5_entry_initialized:
            self._create_h5_group(self._h5_entry_path)
        name = _path(self, key)
        self.into.put(name, form, blocks)
        if isinstance(value, keras.Variable):
            self.written.variables[name] = value

    # A layer may read the values that it has saved.

    def __getitem__(self, key: str) -> Any:
        name = _path(self, key)
        is_ours = name in self.into.written
        return self.into.read(name) if is_ours else super().__getitem__(key)

    def __delitem__(self, key: str) -> None:
        name = _path(self, key)
        if name in self.into.written:
            self.into.remove(name)
            self.written.variables.pop(name, None)
        else:
            super().__delitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:
        group = _path(self, "")
        ours = (name.rpartition("/") for name in self.into.written)
        own_keys = [key for where, _, key in ours if f"{where}/" == group]
        return [*super().keys(), *own_keys]


def _path(store: Any, key: str) -> str:
    group = store._h5_entry_group
    name = f"{group.name}/{key}" if isinstance(group, h5py.Group) else ""
    return name.removeprefix("/")


def _entries(value: Any) -> tuple[Any, Iterator[np.ndarray]]:
    if isinstance(value, MappedArray):
        return (value.shape, value.dtype), value.pieces(_PIECE)
    if not isinstance(value, keras.Variable):
        array = keras.ops.convert_to_numpy(value)
    elif (source := source_at_rest(value)) is not None:
        return (source.shape, source.dtype), source.pieces(_PIECE)
    elif is_made_of_zeros(value):
        dtype = np.dtype(keras.backend.standardize_dtype(value.dtype))
        shape = tuple(value.shape)
        return (shape, dtype), _zeros(math.prod(shape), dtype)
    else:
        array = current().read_only_array(first_value(value))
        if array.flags.writeable:  # the layer may modify the array before the write
            array = np.array(array)
    return (array.shape, array.dtype), iter([array])


def _zeros(size: int, dtype: np.dtype) -> Iterator[np.ndarray]:
    for start in range(0, size, _PIECE):
        yield np.zeros(min(_PIECE, size - start), dtype)


def save_stored(model: Model, path: Path) -> None:
    """Saves a model like Keras, but without optimizer state.

    The file size is a fair baseline for smaller files.
    """
    with _errors_of_saving(model.name):
        save_untrained(model, path)


@contextmanager
def _errors_of_saving(name: str) -> Iterator[None]:
    try:
        with lambda_errors():
            yield
    except (KerasMemError, OSError):  # disk errors are handled by the caller
        raise
    except Exception as error:  # a custom class may raise anything
        raise OutputError(
            f"Keras cannot save the model {name!r}: {first_reason(error)}"
        ) from error


def _new_optimizer(model: Model) -> Any | None:
    """Returns the optimizer in its initial state."""
    built_for = [*model.trainable_variables]
    if any(source_at_rest(v) is not None for v in built_for):
        built_for = [*map(VariableShape.of, built_for)]
    values = current().lazy_values()
    is_lazy = values.why_not() is None
    with lazy_variables(values, described=True) if is_lazy else nullcontext():
        return fresh_optimizer(model, built_for)
