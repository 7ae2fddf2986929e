"""Rows of a teacher's answers on disk, and how they are given to a batch.

One file per array and one of the samples' keys. The keys are written last: whatever a
broken-off run left without its key is cut off when the store is opened again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from kerasmem.checks import Checked, InstanceOf, Whole, invalid
from kerasmem.errors import DataError, InputError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.records.regular import open_regular, read_json_file
from kerasmem.types import Tensor


@dataclass(frozen=True)
class Cache(Checked):
    """A cache of the teacher's outputs on disk: the teacher runs once per sample.

    Args:
        folder: where; made if it is not there. It belongs to one teacher and one set
            of samples.
        top_k: of logits and class probabilities only so many are kept, the largest,
            with one value for all others; None for all.
        dtype: `"float16"` or `"float32"`.
        batch_size: samples that the teacher is asked about at a time.

    Raises:
        ConfigError: if a value is out of its range, or `folder` is no path.

    Example:
        >>> Cache("answers", top_k=10).dtype
        'float16'
    """

    folder: Annotated[Any, InstanceOf((str, Path), "the path of a folder")]
    _: KW_ONLY
    top_k: Annotated[int, Whole(1)] | None = None
    dtype: Annotated[str, ("float16", "float32")] = "float16"
    batch_size: Annotated[int, Whole(1)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if not str(self.folder):
            raise invalid("Cache", "folder", self.folder, "the path of a folder")


def as_cache(cache: Any) -> Cache | None:
    """Return the choice that a folder's name or a `Cache` stands for."""
    return cache if cache is None or isinstance(cache, Cache) else Cache(cache)


def clipped(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in the dtype of a cache, no entry beyond its largest number."""
    limit = np.finfo(dtype).max
    return np.clip(array, -limit, limit).astype(dtype)


def all_logits(cached: Any, classes: int) -> Any:
    """Return kept answers as a float32 tensor of all classes.

    Args:
        cached: a tensor, or what `largest_logits` made of one.
        classes: length of the last axis.
    """
    if not isinstance(cached, dict):
        return ops.cast(cached, "float32")
    rest = ops.cast(cached["rest"], "float32")
    above = ops.cast(cached["values"], "float32") - rest
    places = ops.one_hot(ops.cast(cached["places"], "int32"), classes, dtype="float32")
    return rest + ops.sum(places * ops.expand_dims(above, -1), axis=-2)


def largest_logits(logits: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Return the largest logits, where they are, and one value for all others.

    That value gives the others together the probability that they had at temperature
    1, in equal parts.

    Args:
        logits: (..., classes).
        count: how many are kept, less than the classes.
    """
    places = np.argpartition(-logits, count - 1, axis=-1)[..., :count]
    values = np.take_along_axis(logits, places, axis=-1)
    others = logits.astype("float64")
    np.put_along_axis(others, places, -np.inf, axis=-1)
    highest = others.max(axis=-1, keepdims=True)
    mean = np.exp(others - highest).sum(axis=-1, keepdims=True)
    mean /= logits.shape[-1] - count
    rest = highest + np.log(mean)
    return {
        "places": places.astype("int32"),
        "values": values,
        "rest": rest.astype("float32"),
    }


_INPUTS, _ANSWERS = "kerasmem_inputs", "kerasmem_answers"


def with_answers(x: Tensor, answers: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """Return inputs and answers as one structure that `fit` takes for `x`.

    Args:
        x: inputs of the student.
        answers: of every teacher what it gave: its outputs, flat, then its features.
    """
    # Tuples, because tf.data takes no lists.
    return {_INPUTS: x, _ANSWERS: tuple(map(tuple, answers))}


def split_answers(x: Tensor) -> tuple[Any, Sequence[Sequence[Any]] | None]:
    """Return inputs, and the answers if they are there."""
    if isinstance(x, dict) and set(x) == {_INPUTS, _ANSWERS}:
        return x[_INPUTS], x[_ANSWERS]
    return x, None


KEY_BYTES = 16


def sample_keys(x: Tensor) -> list[bytes]:
    """Return a digest of every sample of a batch.

    Args:
        x: inputs: an array, or a dict or list of arrays.
    """
    arrays = [np.ascontiguousarray(to_array(leaf)) for leaf in keras.tree.flatten(x)]
    rows = [array.reshape(len(array), -1) for array in arrays]
    head = "".join(f"{a.dtype}{a.shape[1:]}" for a in arrays).encode()
    return [
        hashlib.blake2b(
            b"".join((head, *(part[i].tobytes() for part in rows))),
            digest_size=KEY_BYTES,
        ).digest()
        for i in range(len(rows[0]))
    ]


def to_array(value: Any) -> np.ndarray:
    """Return an array or a tensor as a NumPy array."""
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)


_ABOUT, _KEYS = "cache.json", "keys.bin"


@dataclass(frozen=True)
class Column:
    """One array that is kept.

    Args:
        name: of its file.
        dtype: NumPy's name of its entries' type.
        shape: of one sample's row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=int))


class AnswerStore:
    """Answers by the key of their sample.

    Args:
        folder: where they are, or will be.
        teacher: digest of who answers.
        columns: what is kept of every sample.

    Raises:
        DataError: if the folder holds answers of another teacher, or others of it.
        OutputError: if there can be no such folder.
    """

    def __init__(self, folder: Path, teacher: str, columns: Sequence[Column]) -> None:
        self._folder = folder
        self._columns = tuple(columns)
        self._about = {
            "version": 1,
            "teacher": teacher,
            "columns": [asdict(column) for column in columns],
            "complete": False,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                "A cache is a folder, there already or to be made. Received: "
                f"{str(folder)!r}: {error.strerror or error}."
            ) from error
        if os.path.lexists(folder / _ABOUT):
            self._check()
        else:
            self._write_about()
        try:
            self.rows = self._opened()
        except OSError as error:
            raise self._unsound(error) from error

    @property
    def complete(self) -> bool:
        """Whether all samples of the data have been answered once."""
        return bool(self._about["complete"])

    def append(self, keys: Sequence[bytes], arrays: Sequence[np.ndarray]) -> None:
        """Add rows; a broken-off call leaves none of them.

        Args:
            keys: of the samples.
            arrays: one per column, as many rows as keys.
        """
        for column, array in zip(self._columns, arrays, strict=True):
            rows = np.ascontiguousarray(array, dtype=column.dtype)
            self._add(column.name, rows.tobytes())
        self._add(_KEYS, b"".join(keys))
        first = len(self.rows)
        self.rows.update({key: first + i for i, key in enumerate(keys)})

    def finish(self) -> None:
        """Note that the answers are complete."""
        self._about["complete"] = True
        self._write_about()

    def arrays(self) -> list[np.ndarray]:
        """Return every column, mapped into memory read-only."""
        return [self._mapped(column) for column in self._columns]

    def _mapped(self, column: Column) -> np.ndarray:
        shape = (len(self.rows), *column.shape)
        with open_regular(self._folder / column.name) as file:
            return np.memmap(file, dtype=column.dtype, mode="r", shape=shape)

    def _check(self) -> None:
        try:
            about = read_json_file(self._folder / _ABOUT)
            description = {**about, "complete": bool(about["complete"])}
        except (InputError, OSError, KeyError, TypeError) as error:
            raise self._unsound(error) from error
        for field, whose in (("teacher", "another teacher"), ("columns", "other form")):
            if description.get(field) != json.loads(json.dumps(self._about[field])):
                raise DataError(
                    f"The cache in {str(self._folder)!r} is of {whose}: its config, "
                    "weights, compared layers, top_k or dtype differ. Next: remove it, "
                    "or use another folder."
                )
        self._about["complete"] = description["complete"]

    def _opened(self) -> dict[bytes, int]:
        row_bytes = {column.name: column.row_bytes for column in self._columns}
        row_bytes[_KEYS] = KEY_BYTES
        rows: dict[bytes, int] = {}
        with ExitStack() as scope:
            files = {
                name: scope.enter_context(open_regular(self._folder / name, "ab+"))
                for name in row_bytes
            }
            sizes = {name: file.seek(0, os.SEEK_END) for name, file in files.items()}
            count = min(sizes[name] // size for name, size in row_bytes.items())
            files[_KEYS].seek(0)
            for number in range(count):
                key = files[_KEYS].read(KEY_BYTES)
                if key in rows:
                    raise self._unsound("a key of it comes twice")
                rows[key] = number
            for name, file in files.items():
                if sizes[name] != count * row_bytes[name]:
                    file.truncate(count * row_bytes[name])
        return rows

    def _unsound(self, why: object) -> DataError:
        reason = str(why).removesuffix(".")
        return DataError(
            f"{str(self._folder)!r} is no sound cache: {reason}. Next: remove it."
        )

    def _add(self, name: str, content: bytes) -> None:
        with open_regular(self._folder / name, "ab") as file:
            file.write(content)

    def _write_about(self) -> None:
        with replacing(self._folder / _ABOUT, follow_link=False) as path:
            path.write_text(json.dumps(self._about, indent=1))
