"""Rows of answers on disk, appended batch by batch and mapped into memory.

One file per array and one of the samples' keys. The keys are written last: whatever a
broken-off run left without its key is cut off when the store is opened again.
"""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasmem.compression.distill.cache import KEY_BYTES
from kerasmem.errors import DataError, InputError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.records.regular import open_regular, read_json_file

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


class Store:
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
            found = {**about, "complete": bool(about["complete"])}
        except (InputError, OSError, KeyError, TypeError) as error:
            raise self._unsound(error) from error
        for field, whose in (("teacher", "another teacher"), ("columns", "other form")):
            if found.get(field) != json.loads(json.dumps(self._about[field])):
                raise DataError(
                    f"The cache in {str(self._folder)!r} is of {whose}: its config, "
                    "weights, compared layers, top_k or dtype differ. Next: remove it, "
                    "or use another folder."
                )
        self._about["complete"] = found["complete"]

    def _opened(self) -> dict[bytes, int]:
        """Cut off what has no key, and return the number of every key's row."""
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


def described(name: str, array: Any) -> Column:
    """Return the column that rows like this array's make."""
    return Column(name, str(array.dtype), tuple(array.shape[1:]))
