"""Predictions that go to disk batch by batch, so that memory stays flat."""

import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.errors import DataError, ModelError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.files.data.forms import (
    first_samples,
    inputs_from,
    is_array_data,
    named_leaves,
)

_STATE = "state.json"
_SAVE_EVERY_BYTES = 16 * 2**20


def predict(
    model: keras.Model,
    data: Any,
    *,
    output: str | os.PathLike[str],
    batch_size: int = 32,
) -> Any:
    """Predict to disk: write each batch as it comes, and return all memory-mapped.

    Each batch is written when it is there, so memory holds one batch however long the
    data is. What was written is at `OUTPUT.part` until it is whole: a call that was
    broken off, or killed, goes on from there if weights, shapes and batch size are the
    same.

    Args:
        model: a built model.
        data: `x`, `(x, y)`, a `tf.data.Dataset`, a `PyDataset`; the same as elsewhere.
            Labels are not read. Batched data must come in the same order to go on.
        output: path of the `.npy` file; for several outputs a folder, with one file
            each by the names of the outputs.
        batch_size: samples in a batch, from 1; batched data keeps its own.

    Returns:
        The predictions, `(samples, ...)`, memory-mapped to read; of several outputs a
        list, or a dict by their names where the model returns one.

    Raises:
        DataError: if there are no samples, or a generator is to be gone on with.
        ModelError: if the outputs are not arrays of one length a batch.
        OutputError: if the file cannot be written.

    Example:
        >>> import tempfile, kerasmem as km
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "predictions.npy")
        ...     km.predict(model, np.zeros((100, 2), "float32"), output=path).shape
        (100, 3)
    """
    target = Path(output)
    if not target.parent.is_dir():
        raise OutputError(
            f"Could not write {str(target)!r}: there is no folder "
            f"{str(target.parent)!r}. Next: make it."
        )
    part = _Part(target.with_name(f"{target.name}.part"))
    done = part.begin(_fingerprint(model, data, batch_size))
    try:
        if done and isinstance(data, Iterator):
            raise DataError(
                "A generator cannot be gone on with. Expected: arrays, a "
                "tf.data.Dataset or a keras.utils.PyDataset. Received: a generator, "
                "and predictions that were broken off. Next: remove the .part folder "
                "to begin anew."
            )
        for x in inputs_from(data, done, batch_size):
            part.append(model.predict_on_batch(x))
        return part.finish(target)
    except OSError as error:
        raise OutputError(
            f"Could not write {str(target)!r}: {error.strerror or error}. What was "
            f"predicted is kept in {str(part.folder)!r}. Next: make room, call again."
        ) from error
    finally:
        part.close()


def _fingerprint(model: keras.Model, data: Any, batch_size: int) -> str:
    """Return what must be the same to go on: weights, inputs' shapes, batch size."""
    checksum = 0
    for weight in model.weights:
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(weight))
        checksum = zlib.crc32(value.data.cast("B") if value.nbytes else b"", checksum)
    shapes: list[Any] = [len(data)] if isinstance(data, Sized) else []
    if is_array_data(data):
        leaves = named_leaves(first_samples(data)["x"]).items()
        shapes = [[n, list(a.shape), str(a.dtype)] for n, a in leaves if a is not None]
    return json.dumps([checksum, shapes, batch_size, len(model.weights)])


class _Part:
    """Predictions that are not whole yet: a folder with a file for each output.

    Args:
        folder: its path; it may be there from a call that was broken off.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[_Growing] = []
        self._batches = 0
        self._mark = ""
        self._unsaved = 0

    def begin(self, mark: str) -> int:
        """Return how many batches are there already, of equal model and data.

        Args:
            mark: what tells model and data from others.
        """
        self._mark = mark
        state_path = self.folder / _STATE
        state = json.loads(state_path.read_text()) if state_path.exists() else {}
        if state.get("mark") != mark:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            return 0
        self._batches = state["batches"]
        self._files = [
            _Growing.reopened(self.folder / name, rows)
            for name, rows in state["files"].items()
        ]
        return self._batches

    def append(self, outputs: Any) -> None:
        """Write the outputs of one batch.

        Args:
            outputs: an array, `(samples, ...)`, or a structure of them.
        """
        named = _by_name(outputs)
        rows = {len(array) for array in named.values()}
        if len(rows) != 1:
            raise ModelError(
                "The outputs of a batch differ in their number of samples. Expected: "
                f"one number. Received: {sorted(rows)}."
            )
        if not self._files:
            self._files = [
                _Growing.created(self.folder / f"{name}.npy", array)
                for name, array in named.items()
            ]
        for file, array in zip(self._files, named.values(), strict=True):
            file.append(array)
            self._unsaved += array.nbytes
        self._batches += 1
        if self._unsaved >= _SAVE_EVERY_BYTES:
            self._save()

    def finish(self, target: Path) -> Any:
        """Put the files where they belong, and return them mapped."""
        if not self._files:
            shutil.rmtree(self.folder)
            raise DataError("There is nothing to predict. Received: no samples.")
        self.close()
        for file in self._files:
            file.complete()
        (self.folder / _STATE).unlink(missing_ok=True)
        names = [file.path.name for file in self._files]
        if len(names) == 1:
            (self.folder / names[0]).replace(target)
            self.folder.rmdir()
            return np.load(target, mmap_mode="r")
        if target.is_dir():
            shutil.rmtree(target)
        self.folder.replace(target)
        arrays = {Path(n).stem: np.load(target / n, mmap_mode="r") for n in names}
        return list(arrays.values()) if "0" in arrays else arrays

    def close(self) -> None:
        """Write what is known so far, so that another call can go on."""
        if self._files and self.folder.exists():
            self._save()
        for file in self._files:
            file.close()

    def _save(self) -> None:
        for file in self._files:
            file.flush()
        state = {
            "mark": self._mark,
            "batches": self._batches,
            "files": {file.path.name: file.rows for file in self._files},
        }
        with replacing(self.folder / _STATE) as path:
            path.write_text(json.dumps(state))
        self._unsaved = 0


class _Growing:
    """An `.npy` file that rows are appended to.

    The header says how many rows there are; it has room for any number, and is written
    again at the end.
    """

    def __init__(
        self, path: Path, like: tuple[np.dtype, tuple[int, ...]], rows: int, mode: str
    ) -> None:
        self.path, self.rows = path, rows
        self._dtype, (_, *self._row) = like
        self._file = path.open(mode)

    @classmethod
    def created(cls, path: Path, array: np.ndarray) -> "_Growing":
        """Return a file without rows, for rows as those of `array`."""
        growing = cls(path, (array.dtype, array.shape), 0, "w+b")
        growing._write_header()
        return growing

    @classmethod
    def reopened(cls, path: Path, rows: int) -> "_Growing":
        """Return a file that was broken off, cut to the rows that are known."""
        with path.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            start = file.tell()
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        growing = cls(path, (dtype, shape), rows, "r+b")
        growing._file.truncate(start + rows * row_bytes)
        growing._file.seek(0, os.SEEK_END)
        return growing

    def append(self, array: np.ndarray) -> None:
        """Write rows behind those that are there."""
        expected = tuple(self._row)
        if array.shape[1:] != expected:
            raise ModelError(
                "The outputs of two batches differ in shape, so that they fit in no "
                f"one array. Expected: (samples, {str(expected)[1:-1]}). Received: "
                f"{array.shape}. Next: pad the inputs to one length."
            )
        self._file.write(np.ascontiguousarray(array).data)
        self.rows += len(array)

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def complete(self) -> None:
        """Say in the header how many rows there are."""
        with self.path.open("r+b") as self._file:
            self._write_header()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write_header(self) -> None:
        form = {"descr": np.lib.format.dtype_to_descr(self._dtype)}
        form |= {"fortran_order": False, "shape": (self.rows, *self._row)}
        np.lib.format.write_array_header_1_0(self._file, form)


def _by_name(outputs: Any) -> dict[str, np.ndarray]:
    """Return outputs as arrays by name, those of a list by their numbers."""
    if isinstance(outputs, dict):
        return {str(name): np.asarray(value) for name, value in outputs.items()}
    several = outputs if isinstance(outputs, list | tuple) else [outputs]
    return {str(number): np.asarray(value) for number, value in enumerate(several)}
