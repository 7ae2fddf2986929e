"""Writing the archive of a model, each weight as Keras hands it over.

Keras walks through the model and says what goes where, as for a file of its own; but an
array of numbers goes to our HDF5 file at once, so that none is held, or written twice.
"""

import json
import math
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.lazy import (
    first_value,
    is_made_of_zeros,
    lazy_variables,
    source_at_rest,
)
from kerasmem.backends.patching import patch_method
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
from kerasmem.graph.clone import fresh_optimizer
from kerasmem.graph.full_configs import full_configs
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import nbytes
from kerasmem.stages import Progress

_DATED = "metadata.json"
_PIECE = 1 << 20

_MOST_DEFLATED_TWICE = 4 << 20
"""In a larger file of small arrays it is little that HDF5 writes of each; in a smaller
one that is deflated once more, with all else."""


@dataclass(frozen=True)
class WrittenModel:
    """What was written of a model, to see that its file gives it back.

    Args:
        coding: how arrays were written.
        arrays: the arrays, by their paths in the file.
        variables: those that are the value of a variable, which is that.
        words: arrays that are no numbers, by their paths.
    """

    coding: Coding
    arrays: dict[str, WrittenArray]
    variables: dict[str, Any] = field(default_factory=dict)
    words: dict[str, np.ndarray] = field(default_factory=dict)


def write_model(
    model: Any,
    path: Path,
    coding: Coding,
    *,
    include_optimizer: bool = False,
    slots: bool = True,
) -> WrittenModel:
    """Write the file that `km.save_model` writes, and do not look at it again.

    Args:
        model: a built model.
        path: where to, in a folder with room for another such file.
        coding: as in `km.save_model`.
        include_optimizer: as in `km.save_model`.
        slots: False for an optimizer that has none, where it is not included.

    Raises:
        ModelError: if the optimizer cannot be made anew.
        OutputError: if Keras cannot save the model.
    """
    rest, weights = path.with_name("rest.keras"), path.with_suffix(".h5")
    with ExitStack() as scope:
        progress = Progress("writing the file", sum(map(nbytes, model.variables)))
        file = scope.enter_context(WeightsFile(weights, coding, progress))
        record = WrittenModel(coding, file.written)
        if not include_optimizer:
            scope.enter_context(new_optimizer(model, slots=slots))

        def prepare(store: Any) -> None:
            fields = {"into": file, "written": record}
            store.__class__ = type("HandingOver", (_HandingOver, type(store)), fields)

        with _before_saving(model, prepare):
            save_by_keras(model, rest)
        with opened_weights(rest) as other:
            if other is not None:
                record.words.update(file.put_rest(other))
    with (
        zipfile.ZipFile(rest) as source_archive,
        zipfile.ZipFile(
            path, "w", zipfile.ZIP_DEFLATED, compresslevel=9
        ) as target_archive,
    ):
        for member in source_archive.infolist():
            _write_member(source_archive, member, target_archive, weights, coding)
    rest.unlink()
    weights.unlink()
    return record


def _write_member(
    stored: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    archive: zipfile.ZipFile,
    weights: Path,
    coding: Coding,
) -> None:
    if member.filename == WEIGHTS:
        if coding == "stored" or weights.stat().st_size > _MOST_DEFLATED_TWICE:
            _write_aligned(archive, weights)
        else:
            archive.write(weights, WEIGHTS)
    elif member.filename == CONFIG and coding == "entropy":
        config = CodedModel.wrap(json.loads(stored.read(member)))
        archive.writestr(CONFIG, json.dumps(config))
    elif member.filename == _DATED:
        # As it is: deflated, its size would change with the second.
        archive.writestr(_DATED, stored.read(member), zipfile.ZIP_STORED)
    else:
        large = member.file_size >= 1 << 31
        with (
            stored.open(member) as reader,
            archive.open(member.filename, "w", force_zip64=large) as writer,
        ):
            shutil.copyfileobj(reader, writer, _PIECE)


def _write_aligned(archive: zipfile.ZipFile, new: Path) -> None:
    """Write the weights as they are, where arrays in them lie well in the archive."""
    member = zipfile.ZipInfo.from_file(new, WEIGHTS)
    member.compress_type = zipfile.ZIP_STORED
    # Before the bytes of a member come 30 and its name, and what it says of sizes that
    # do not fit; the rest is made up by an entry that means nothing.
    large = member.file_size >= 1 << 31
    start = archive.start_dir + 30 + len(WEIGHTS) + (20 if large else 0) + 4
    # Never a multiple of 512, where HDF5 would take the archive for one of its files.
    missing = (ALIGNMENT_BYTES - start) % (2 * ALIGNMENT_BYTES)
    member.extra = struct.pack("<HH", 0xD935, missing) + bytes(missing)
    with (
        new.open("rb") as reader,
        archive.open(member, "w", force_zip64=large) as writer,
    ):
        shutil.copyfileobj(reader, writer, _PIECE)


_Store: Any = object


class _HandingOver(_Store):
    """What a class of Keras's stores becomes to hand arrays that go into it to a file.

    Attributes:
        into: the file.
        written: gets the variables that arrays are the values of.
    """

    into: WeightsFile
    written: WrittenModel

    def __setitem__(self, key: str, value: Any) -> None:
        form, blocks = _entries(value)
        if not is_numbers(form[1]):
            super().__setitem__(key, value)
            return
        if not isinstance(self._h5_entry_group, h5py.Group):
            # A number in its place makes the group that it is in.
            super().__setitem__(key, np.zeros((), "int8"))
            super().__delitem__(key)
        name = _path(self, key)
        self.into.put(name, form, blocks)
        if isinstance(value, keras.Variable):
            self.written.variables[name] = value

    # A layer may look at what it has saved.

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
    """Return where an array is, which is nowhere before its group has the first."""
    group = store._h5_entry_group
    name = f"{group.name}/{key}" if isinstance(group, h5py.Group) else ""
    return name.removeprefix("/")


@contextmanager
def _before_saving(model: Any, prepare: Callable[[Any], None]) -> Iterator[None]:
    """Return a scope in which something is done to the store before Keras uses it.

    Args:
        model: that Keras saves in the scope.
        prepare: takes the store.
    """
    save_own_variables, name = model.save_own_variables, "save_own_variables"

    def save(store: Any) -> None:
        # The model is the first to be saved. All others write to the same store.
        prepare(store)
        save_own_variables(store)

    own = vars(model).get(name)
    object.__setattr__(model, name, save)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(model, name)
        else:
            object.__setattr__(model, name, own)


def _entries(value: Any) -> tuple[Any, Iterator[np.ndarray]]:
    """Return shape and type of what Keras stores, and its entries in blocks."""
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
        if array.flags.writeable:  # its layer may change it before it is written
            array = np.array(array)
    return (array.shape, array.dtype), iter([array])


def _zeros(size: int, dtype: np.dtype) -> Iterator[np.ndarray]:
    for start in range(0, size, _PIECE):
        yield np.zeros(min(_PIECE, size - start), dtype)


def save_stored(model: Any, path: Path) -> None:
    """Save `model` as Keras itself does, without any state of the optimizer.

    Its size is what a smaller file is fairly compared with. Keras mostly keeps all of
    such a file in memory before it writes it; here its weights go to the disk.
    """
    weights = path.with_suffix(".h5")

    def prepare(store: Any) -> None:
        if store.archive is None:  # with so little memory Keras does the same
            return
        attributes = dict(store._h5_entry_group.attrs)
        store.h5_file.close()
        store.io_file, store.archive = weights.open("w+b"), None
        store.h5_file = h5py.File(store.io_file, "w")
        store.make(store._h5_entry_path, attributes)

    with fresh_optimizer(model), _before_saving(model, prepare):
        save_by_keras(model, path)
    if weights.exists():
        with zipfile.ZipFile(path, "a") as archive:
            archive.write(weights, WEIGHTS)
        weights.unlink()


def save_by_keras(model: Any, path: Path) -> None:
    """Save a model as Keras itself does.

    Raises:
        OutputError: if it cannot.
    """
    try:
        with full_configs(sublayers(model)):
            model.save(path)
    except (KerasMemError, OSError):  # of the disk, and told as that
        raise
    except Exception as error:  # what a class of the user's own raises has no limit
        raise OutputError(
            f"Keras cannot save the model {model.name!r}: {first_reason(error)}"
        ) from error


@contextmanager
def new_optimizer(model: Any, *, slots: bool) -> Iterator[None]:
    """Return a scope in which a model has its optimizer as before the first step.

    Args:
        model: any model; one that is not compiled is left as it is.
        slots: whether the optimizer has them.

    Raises:
        ModelError: if the optimizer's config does not describe it.
    """
    built_for = [*model.trainable_variables] if slots else None
    if built_for and any(source_at_rest(v) is not None for v in built_for):
        built_for = [*map(_Shape, built_for)]
    values = current().lazy_values()
    is_lazy = values.why_not() is None
    with ExitStack() as scope:
        # What Keras makes later is none of an optimizer.
        with lazy_variables(values, described=True) if is_lazy else nullcontext():
            scope.enter_context(fresh_optimizer(model, built_for=built_for))
        if is_lazy and model.compiled and model.optimizer is not None:
            _save_slots_unread(model.optimizer)
        yield


def _save_slots_unread(optimizer: Any) -> None:
    """Have the new optimizer save its variables, not values that they have not yet."""
    base = keras.optimizers.Optimizer.save_own_variables
    if type(optimizer).save_own_variables is not base:
        return

    def save(_: Any, store: Any) -> None:
        for number, variable in enumerate(optimizer.variables):
            store[str(number)] = variable

    patch_method(optimizer, "save_own_variables", save)


class _Shape:
    """What an optimizer asks of a variable when it makes the slots of it."""

    overwrite_with_gradient = False

    def __init__(self, variable: Any) -> None:
        self.shape, self.dtype = tuple(variable.shape), variable.dtype
        self.name, self.path = variable.name, variable.path
        self.trainable = True
        self.overwrite_with_gradient = getattr(
            variable, "overwrite_with_gradient", False
        )
        self._unique_id = id(self)  # by which TensorFlow's optimizer tells variables

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # noqa: FBT001
        return np.zeros((), dtype or "float32")

    def __jax_array__(self) -> Any:
        return keras.ops.zeros(())
