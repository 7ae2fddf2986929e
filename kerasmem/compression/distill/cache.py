"""Disk cache of teacher outputs, and its use in a batch.

The cache has one file per array and one file of sample keys. Keys are written last.
Opening the cache truncates rows without a key, which an interrupted run left.
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
    """A disk cache of teacher outputs: the teacher runs once per sample.

    Args:
        folder: Path of the cache folder. Created if missing. A folder belongs to one
            teacher and one set of samples.
        top_k: Positive integer. Number of largest logits to store per classifier
            output. All other classes share one value. `None` stores all logits.
            Defaults to `None`.
        dtype: `"float16"` or `"float32"`. Defaults to `"float16"`.
        batch_size: Positive integer. Samples per batch of the teacher. Defaults to 256.

    Raises:
        ConfigError: If a value is out of range, or `folder` is not a path.

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
    """Returns a `Cache` for a folder path."""
    return cache if cache is None or isinstance(cache, Cache) else Cache(cache)


def clipped(array: np.ndarray, dtype: str) -> np.ndarray:
    """Casts an array to `dtype` and clips it to the largest finite number."""
    limit = np.finfo(dtype).max
    return np.clip(array, -limit, limit).astype(dtype)


def all_logits(cached: Any, classes: int) -> Any:
    """Returns stored logits as a float32 tensor over all classes.

    `cached` is a tensor or the output of `largest_logits`.
    """
    if not isinstance(cached, dict):
        return ops.cast(cached, "float32")
    rest = ops.cast(cached["rest"], "float32")
    above = ops.cast(cached["values"], "float32") - rest
    places = ops.one_hot(ops.cast(cached["places"], "int32"), classes, dtype="float32")
    return rest + ops.sum(places * ops.expand_dims(above, -1), axis=-2)


def largest_logits(logits: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Returns the largest `count` logits, their indices and one value for the rest.

    This value preserves the total probability of the other classes at temperature 1.
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
    """Returns inputs and teacher outputs as one structure that `fit` accepts as `x`.

    `answers` contains the flat outputs and features of every teacher.
    """
    # tf.data does not accept lists.
    return {_INPUTS: x, _ANSWERS: tuple(map(tuple, answers))}


def split_answers(x: Tensor) -> tuple[Any, Sequence[Sequence[Any]] | None]:
    """Splits the structure of `with_answers` into inputs and teacher outputs."""
    if isinstance(x, dict) and set(x) == {_INPUTS, _ANSWERS}:
        return x[_INPUTS], x[_ANSWERS]
    return x, None


KEY_BYTES = 16


def sample_keys(x: Tensor) -> list[bytes]:
    """Returns a digest of every sample of a batch of inputs."""
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
    """Converts an array or a tensor to a NumPy array."""
    return value if isinstance(value, np.ndarray) else keras.ops.convert_to_numpy(value)


_ABOUT, _KEYS = "cache.json", "keys.bin"


@dataclass(frozen=True)
class Column:
    """A stored array: file name, NumPy dtype name and shape of one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=int))


class AnswerStore:
    """Stores teacher outputs by sample key.

    `teacher` is a digest of the teacher.

    Raises:
        DataError: If the folder contains outputs of another teacher or form.
        OutputError: If the folder cannot be created.
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
                "Could not create the cache folder. Received: "
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
        """Whether outputs for all samples of the data are stored."""
        return bool(self._about["complete"])

    def append(self, keys: Sequence[bytes], arrays: Sequence[np.ndarray]) -> None:
        """Adds rows. An interrupted call adds none.

        `arrays` contains one array per column, with one row per key.
        """
        for column, array in zip(self._columns, arrays, strict=True):
            rows = np.ascontiguousarray(array, dtype=column.dtype)
            self._add(column.name, rows.tobytes())
        self._add(_KEYS, b"".join(keys))
        first = len(self.rows)
        self.rows.update({key: first + i for i, key in enumerate(keys)})

    def finish(self) -> None:
        """Marks the store as complete."""
        self._about["complete"] = True
        self._write_about()

    def arrays(self) -> list[np.ndarray]:
        """Returns all columns as read-only memory maps."""
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
                    raise self._unsound("duplicate key")
                rows[key] = number
            for name, file in files.items():
                if sizes[name] != count * row_bytes[name]:
                    file.truncate(count * row_bytes[name])
        return rows

    def _unsound(self, why: object) -> DataError:
        reason = str(why).removesuffix(".")
        return DataError(
            f"{str(self._folder)!r} is not a valid cache: {reason}. Next: remove it."
        )

    def _add(self, name: str, content: bytes) -> None:
        with open_regular(self._folder / name, "ab") as file:
            file.write(content)

    def _write_about(self) -> None:
        with replacing(self._folder / _ABOUT, follow_link=False) as path:
            path.write_text(json.dumps(self._about, indent=1))
