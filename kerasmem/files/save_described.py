"""Writing the file of a described model, each array of it in pieces.

Keras itself writes the file, but for the large arrays: it leaves room for those. What
is in between is then copied, and they are filled in as it goes.
"""

import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

import h5py
import keras
import ml_dtypes
import numpy as np

from kerasmem.backends.lazy import first_value, is_made_of_zeros
from kerasmem.files.entries import Entries, zeros
from kerasmem.files.members import WEIGHTS
from kerasmem.files.save import save_by_keras
from kerasmem.graph.clone import fresh_optimizer

_SMALL_BYTES = 1 << 16
_PIECE = 1 << 20

EntriesOf = Callable[[Any], Entries | None]
"""Gives the entries of a variable, None for one that has its value."""


def save_described(model: Any, path: Path, entries_of: EntriesOf) -> None:
    """Write the file that Keras would write of a model, its optimizer as new.

    Args:
        model: a described model, see `described_model`, within the scope.
        path: where to, in a folder with room for a small file beside it.
        entries_of: the values of its variables.

    Raises:
        OutputError: if Keras cannot save the model.
    """
    small = path.with_name("described.keras")
    found: dict[str, Entries] = {}
    with _with_slots(model):
        _save_slots_unread(model)
        own = _recording(model, entries_of, found)
        try:
            save_by_keras(model, small)
        finally:
            object.__delattr__(model, own)
    weights = path.with_name("described.h5")
    with (
        zipfile.ZipFile(small) as described,
        zipfile.ZipFile(path, "w") as made,
    ):
        for member in described.infolist():
            if member.filename != WEIGHTS:
                made.writestr(member, described.read(member))
                continue
            with described.open(member) as reader, weights.open("wb") as writer:
                shutil.copyfileobj(reader, writer, _PIECE)
            places = _room_for(weights, found)
            with made.open(WEIGHTS, "w", force_zip64=True) as writer:
                _fill(weights, writer, places)
    weights.unlink()
    small.unlink()


def _with_slots(model: Any) -> AbstractContextManager[Any]:
    """Return a scope in which a model has a new optimizer, with slots for its weights.

    Slots are made beside a value, which described variables have not.
    """
    if not model.compiled or model.optimizer is None:
        return nullcontext()
    return fresh_optimizer(model, built_for=[*map(_Shape, model.trainable_variables)])


def _save_slots_unread(model: Any) -> None:
    """Have the new optimizer save its variables, not values that they have not yet."""
    optimizer = model.optimizer if model.compiled else None
    base = keras.optimizers.Optimizer.save_own_variables
    if optimizer is None or type(optimizer).save_own_variables is not base:
        return

    def save_own_variables(store: Any) -> None:
        for number, variable in enumerate(optimizer.variables):
            store[str(number)] = variable

    object.__setattr__(optimizer, save_own_variables.__name__, save_own_variables)


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


def _recording(model: Any, entries_of: EntriesOf, found: dict[str, Entries]) -> str:
    """Have a model leave room in its file for large arrays, and note them by name.

    Returns:
        The attribute of the model that does it.
    """

    def save_own_variables(store: Any) -> None:
        # The model is the first to be saved. All others write to the same store.
        original = type(store)

        def put(store: Any, key: str, value: Any) -> None:
            entries = _entries(value, entries_of)
            if entries is None:
                is_variable = isinstance(value, keras.Variable)
                held = first_value(value) if is_variable else value
                original.__setitem__(store, key, held)
            elif entries.nbytes <= _SMALL_BYTES:
                original.__setitem__(store, key, entries.whole())
            else:
                # A number in its place makes the group that it is in.
                original.__setitem__(store, key, np.zeros((), "int8"))
                name = f"{store._h5_entry_group.name}/{key}"
                found[name] = entries

        store.__class__ = type("Recording", (original,), {"__setitem__": put})
        type(model).save_own_variables(model, store)

    object.__setattr__(model, save_own_variables.__name__, save_own_variables)
    return save_own_variables.__name__


def _entries(value: Any, entries_of: EntriesOf) -> Entries | None:
    if not isinstance(value, keras.Variable):
        return None
    found = entries_of(value)
    if found is None and is_made_of_zeros(value):
        dtype = keras.backend.standardize_dtype(value.dtype)
        named = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        return zeros(tuple(value.shape), named)
    return found


def _room_for(path: Path, found: Mapping[str, Entries]) -> list[tuple[int, Entries]]:
    """Make room for arrays in an HDF5 file; return where each begins, in order."""
    with h5py.File(path, "r+") as weights:
        for name, entries in found.items():
            del weights[name]
            dataset = weights.create_dataset(name, entries.shape, entries.dtype)
            if entries.dtype == ml_dtypes.bfloat16:
                dataset.attrs["dtype"] = "bfloat16"  # as Keras does
            # One entry that is written gives room to all.
            dataset[(0,) * len(entries.shape)] = np.zeros((), entries.dtype)
        weights.flush()
        places = [(int(weights[n].id.get_offset()), e) for n, e in found.items()]
    return sorted(places, key=lambda place: place[0])


def _fill(path: Path, writer: IO[bytes], places: list[tuple[int, Entries]]) -> None:
    """Copy a file, with arrays in their places."""
    with path.open("rb") as reader:
        for place, entries in places:
            _copy(reader, writer, place - reader.tell())
            for piece in entries.pieces():
                writer.write(piece.view(np.uint8).data)
            reader.seek(place + entries.nbytes)
        shutil.copyfileobj(reader, writer, _PIECE)


def _copy(reader: IO[bytes], writer: IO[bytes], size: int) -> None:
    while size > 0:
        piece = reader.read(min(size, _PIECE))
        writer.write(piece)
        size -= len(piece)
