"""Predictions written to disk batch by batch, so that memory stays flat."""

import json
import math
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.checks import Whole
from kerasmem.errors import DataError, ModelError, OutputError
from kerasmem.files.atomic import held, writing
from kerasmem.files.data.forms import inputs_from, length_of
from kerasmem.files.data.source import check_ends
from kerasmem.graph.values import model_digest
from kerasmem.memory.fit.notices import stateful_layers
from kerasmem.records.regular import open_regular
from kerasmem.types import Dataset, Model, Tensors

_MANIFEST, _NEW_MANIFEST, _JOURNAL = "outputs.json", "new.json", "batches.bin"
_MOST_MANIFEST = 1 << 20
_MAGIC = b'{"kerasmem.predict": 1, '
_RECORD = struct.Struct("<QI")
"""Journal entry of a batch: number of rows, checksum of all batches so far."""

_PIECE_BYTES = 1 << 22
_ROUNDING = 64
"""Maximum relative difference between two predictions of a model, in epsilons."""


def predict(
    model: keras.Model,
    data: Dataset,
    *,
    output: str | os.PathLike[str],
    batch_size: int = 32,
) -> Any:
    """Predict to disk and return the predictions memory-mapped.

    Each batch is written as soon as it is computed, so memory holds one batch at a
    time. Until all batches are written, the rows are in the folder `OUTPUT.part`. The
    next call with the same output resumes an interrupted run:

    - The first batch is computed again. If the config, the weights or the outputs of
      the model differ, all batches are computed again.
    - Each other batch is read and compared with the checksums of the interrupted run.
      All batches after a changed input or a damaged row are computed again.
    - Stateful recurrent models and models with random outputs start from the
      beginning.

    Args:
        model: A `keras.Model`.
        data: `x`, `(x, y)`, a `tf.data.Dataset`, a `keras.utils.PyDataset` or a
            generator. Labels are ignored.
        output: Path of the `.npy` file. An existing file is replaced. For models with
            several outputs, path of a new folder. The folder contains one file per
            output (`0.npy`, `1.npy`, ...) and the output names in `outputs.json`.
        batch_size: Number of samples per batch, at least 1 (default: 32). Batched data
            keeps its batch size.

    Returns:
        Memory-mapped arrays of shape `(samples, ...)`, in the structure that
        `model.predict` returns. bfloat16 outputs are returned as float32.

    Raises:
        ConfigError: If `batch_size` is not an integer of at least 1.
        DataError: If the data has no samples.
        ModelError: If the outputs are not numeric arrays of equal length and type.
        OutputError: If the output cannot be written, or if `output` is a folder that
            is not empty. After a full disk, the finished rows are kept.

    Example:
        >>> import tempfile, kerasmem as km
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "predictions.npy")
        ...     km.predict(model, np.zeros((100, 2), "float32"), output=path).shape
        (100, 3)
    """
    batch_size = Whole(1).check("predict", "batch_size", batch_size)
    check_ends(data, "the prediction")
    with ExitStack() as stack:
        part = _PartialRows(model, Path(output), stack)
        for x in inputs_from(data, 0, batch_size):
            if not part.skip(x):
                part.append(x, model.predict_on_batch(x))
        return part.finish()


class _PartialRows:
    """The rows of an unfinished run, in a folder next to the output.

    The folder contains a file of rows per output, a journal with an entry per batch,
    and a manifest. Only rows with a matching checksum in the journal are used.
    """

    def __init__(self, model: Model, target: Path, stack: ExitStack) -> None:
        self._model, self._target, self._stack = model, target, stack
        self._folder = target.parent / f"{target.name}.part"
        self._files: list[Any] = []  # One per output, and the journal.
        self._like: list[np.ndarray] = []  # Empty arrays with the form of the outputs.
        self._rows = self._checksum = self._most = 0

    @contextmanager
    def _writing(self) -> Iterator[None]:
        refusal = None
        outcome = (
            f"Finished rows are kept in {str(self._folder)!r}. Next: free disk space "
            "or correct the path, and call km.predict again."
        )
        with writing(self._target, outcome):
            try:
                yield
            except OutputError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    def skip(self, x: Dataset) -> bool:
        """Return whether the next batch is saved. If not, remove all later rows."""
        if not self._files:
            return False
        record = self._files[-1].read(_RECORD.size)
        if len(record) == _RECORD.size:
            rows, checksum = _RECORD.unpack(record)
            if rows > max(self._most, length_of(keras.tree.flatten(x)[0])):
                self._cut()
                return False
            sizes = [rows * math.prod(a.shape[1:]) * a.itemsize for a in self._like]
            pieces = chain.from_iterable(map(_pieces, self._files, sizes))
            if _checked(self._checksum, rows, x, pieces) == checksum:
                self._add(rows, checksum)
                return True
        self._cut()
        return False

    def append(self, x: Dataset, outputs: Tensors) -> None:
        """Write the outputs of a batch, then its entry in the journal."""
        arrays = _arrays(outputs, self._like)
        with self._writing():
            if not self._files:
                self._open(outputs, arrays)
                self._most = len(arrays[0])  # No record of this run has more rows.
                is_saved = self.skip(x) and self._rows == len(arrays[0])
                if is_saved and all(map(_agrees, self._files, self._starts, arrays)):
                    return
                self._rows, self._checksum, self._ends = 0, 0, self._starts
                self._cut()
            rows, contents = len(arrays[0]), [_bytes(array) for array in arrays]
            checksum = _checked(self._checksum, rows, x, contents)
            contents.append(_RECORD.pack(rows, checksum))
            for file, content in zip(self._files, contents, strict=True):
                count = 0
                while count < len(content):
                    count += file.write(content[count:])
            self._add(rows, checksum)

    def finish(self) -> Any:
        """Move the rows to the output and return them in the structure of the model."""
        if not self._files:
            raise DataError("Expected at least one sample. Received: empty data.")
        target, is_folder = self._target, len(self._like) > 1
        with self._writing():
            self._cut()
            for file, array in zip(self._files, self._like, strict=False):
                _write_header(file, array, self._rows)
                os.fsync(file.fileno())
            for file in self._files:
                file.close()  # The folder stays locked.
            _check_output(target, is_folder=is_folder)
            if is_folder:
                self._folder.rename(target)
                (target / _JOURNAL).unlink()
                content = (target / _MANIFEST).read_bytes().removeprefix(_MAGIC)
                (target / _NEW_MANIFEST).write_bytes(b"{" + content)
                (target / _NEW_MANIFEST).replace(target / _MANIFEST)
            else:
                (self._folder / "0.npy").replace(target)
                _remove_own(self._folder)
                with suppress(OSError):  # Another program has added a file.
                    self._folder.rmdir()
        arrays = [
            np.load(target / f"{number}.npy" if is_folder else target, mmap_mode="r")
            for number in range(len(self._like))
        ]
        return keras.tree.pack_sequence_as(self._structure, arrays)

    def _open(self, outputs: Tensors, arrays: list[np.ndarray]) -> None:
        _check_output(self._target, is_folder=len(arrays) > 1)
        if not os.path.lexists(self._folder):
            self._folder.mkdir()
        _check_own(self._folder)
        if self._stack.enter_context(held(self._folder)) is False:
            raise OutputError(
                f"Another process writes to {str(self._folder)!r}. Next: wait until it "
                "ends, or choose another output."
            )
        self._structure = keras.tree.map_structure(lambda _: 0, outputs)
        self._like = [np.empty_like(array[:0]) for array in arrays]
        manifest = _manifest(self._model, self._structure, self._like)
        if _head(self._folder / _MANIFEST, len(manifest) + 1) != manifest:
            _remove_own(self._folder)
            (self._folder / _NEW_MANIFEST).write_bytes(manifest)
            (self._folder / _NEW_MANIFEST).replace(self._folder / _MANIFEST)
        for name in (*(f"{number}.npy" for number in range(len(arrays))), _JOURNAL):
            (self._folder / name).touch()
            # Unbuffered: after a full disk, closing a buffered file raises again.
            file: Any = open_regular(self._folder / name, "r+b")
            self._files.append(self._stack.enter_context(file.detach()))
        for file, array in zip(self._files, self._like, strict=False):
            _write_header(file, array, 0)
        self._starts = self._ends = [file.tell() for file in self._files]

    def _add(self, rows: int, checksum: int) -> None:
        self._rows, self._checksum = self._rows + rows, checksum
        self._ends = [file.tell() for file in self._files]

    def _cut(self) -> None:
        for file, end in zip(self._files, self._ends, strict=True):
            file.truncate(end)
            file.seek(end)


def _check_output(target: Path, *, is_folder: bool) -> None:
    is_empty = target.is_dir() and not any(target.iterdir())
    is_usable = is_empty if is_folder else target.is_file()
    is_new = not os.path.lexists(target) and "\0" not in str(target)
    if target.is_symlink() or not target.parent.is_dir() or not (is_new or is_usable):
        raise OutputError(
            f"Expected output to be a new {'folder' if is_folder else 'file'} in an "
            f"existing folder. Received: output={str(target)!r}. Next: choose another "
            "path, or remove the existing output."
        )


def _check_own(folder: Path) -> None:
    is_folder = folder.is_dir() and not folder.is_symlink()
    paths = list(folder.iterdir()) if is_folder else []
    if not (is_folder and all(map(_is_plain, paths))):
        raise _not_own(folder)
    names = {path.name for path in paths} - {_NEW_MANIFEST}
    outputs = range(_outputs_in(folder) if names else 0)
    if not names <= {_MANIFEST, _JOURNAL, *map("{}.npy".format, outputs)}:
        raise _not_own(folder)


def _not_own(folder: Path) -> OutputError:
    return OutputError(
        f"Expected {str(folder)!r} to be the folder of an interrupted km.predict. "
        "Received: another folder or file, or a damaged folder. Next: rename it or "
        "remove it."
    )


def _outputs_in(folder: Path) -> int:
    content = _head(folder / _MANIFEST, _MOST_MANIFEST)
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        if content.startswith(_MAGIC):
            return len(json.loads(content)["forms"])
    raise _not_own(folder)


def _is_plain(path: Path) -> bool:
    state = path.lstat()
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def _remove_own(folder: Path) -> None:
    own = re.compile(r"outputs\.json|new\.json|batches\.bin|[0-9]+\.npy")
    for path in sorted(folder.iterdir()):  # The manifest is the last one.
        if _is_plain(path) and own.fullmatch(path.name):
            path.unlink()


def _head(path: Path, count: int) -> bytes:
    with suppress(FileNotFoundError), open_regular(path) as file:
        return file.read(count)
    return b""


def _pieces(file: Any, size: int) -> Iterator[bytes]:
    while piece := file.read(min(size, _PIECE_BYTES)):
        size -= len(piece)
        yield piece


def _agrees(file: Any, start: int, array: np.ndarray) -> bool:
    file.seek(start)
    saved_array = np.fromfile(file, array.dtype, array.size).reshape(array.shape)
    if array.dtype.kind not in "fc":
        return np.array_equal(saved_array, array)
    scale = np.abs(array[np.isfinite(array)]).max(initial=0)
    most = _ROUNDING * np.finfo(array.dtype).eps
    return np.allclose(saved_array, array, most, most * scale, equal_nan=True)


def _checked(checksum: int, rows: int, x: Dataset, contents: Iterable[Any]) -> int:
    checksum = zlib.crc32(b"%d" % rows, checksum)
    inputs = chain.from_iterable(map(_input_bytes, keras.tree.flatten(x)))
    for content in chain(inputs, contents):
        checksum = zlib.crc32(content, checksum)
    return checksum


def _input_bytes(leaf: Any) -> tuple[Any, ...]:
    if leaf is None:
        return (b"None",)
    array = leaf if isinstance(leaf, np.ndarray) else keras.ops.convert_to_numpy(leaf)
    has_text = array.dtype.hasobject
    content = repr(array.tolist()).encode() if has_text else _bytes(array)
    return f"{array.dtype}{array.shape}".encode(), content


def _bytes(array: np.ndarray) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _manifest(model: Model, structure: Any, like: list[np.ndarray]) -> bytes:
    key = model_digest(model, [keras.__version__, keras.backend.backend()])
    if stateful_layers(model):
        key = os.urandom(16).hex()  # Saved rows are not reused: states are not saved.
    names = [[*map(str, path)] for path, _ in keras.tree.flatten_with_path(structure)]
    content = json.dumps({"model": key, "names": names, "forms": _forms(like)})
    return _MAGIC + content[1:].encode()


def _arrays(outputs: Tensors, like: list[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs as arrays, checked against the `like` of earlier batches."""
    arrays = [np.asarray(leaf) for leaf in keras.tree.flatten(outputs)]
    # NumPy cannot load bfloat16.
    arrays = [a.astype(np.float32) if a.dtype.kind == "V" else a for a in arrays]
    is_numeric = all(a.dtype.kind in "biufc" and a.ndim for a in arrays)
    has_one_length = len({array.shape[:1] for array in arrays}) == 1
    if not (is_numeric and has_one_length and _forms(like or arrays) == _forms(arrays)):
        raise ModelError(
            "Expected numeric outputs with one length in each batch, and the same row "
            f"shapes and types in all batches. Received: {_forms(arrays)} after "
            f"{_forms(like)}. Next: pad the inputs to one length."
        )
    return arrays


def _forms(arrays: list[np.ndarray]) -> list[tuple[str, tuple[int, ...]]]:
    return [(array.dtype.str, array.shape[1:]) for array in arrays]


def _write_header(file: Any, array: np.ndarray, rows: int) -> None:
    form = {"descr": array.dtype.str, "fortran_order": False}
    form |= {"shape": (rows, *array.shape[1:])}
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, form)
