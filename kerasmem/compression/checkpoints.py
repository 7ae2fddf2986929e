"""What a compression has done so far, in a folder, so that a killed run goes on.

After every step the model lies there as `kerasmem-step-0002.keras`, and beside it,
written last, a `.json` of that name with the account of its weights. Whoever goes on
begins from the file, also the run that wrote it: so a run that was killed ends with the
same weights.
"""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.files.data import is_array_data
from kerasmem.files.load import load_model
from kerasmem.files.opens import check_opens
from kerasmem.files.save import save_stored
from kerasmem.graph.clone import live_objects
from kerasmem.graph.fingerprint import model_digest
from kerasmem.records import WeightChange

_NAME = "kerasmem-step-"
_LEFT_OVER = re.compile(r"\.[0-9a-f]{8}\.(keras|json)")
_PIECE = 1 << 22
"""Entries of data that are looked at in one piece."""


@dataclass(frozen=True)
class Checkpoints:
    """The steps of one compression that are done.

    Args:
        folder: where they lie; made if it is not there.
        key: what the compression is of, see `key_of`.
    """

    folder: Path
    key: str

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"Could not make the folder {str(self.folder)!r}: {error.strerror}."
            ) from error
        for path in self.folder.iterdir():
            if _LEFT_OVER.fullmatch(path.name):  # of a run that was killed
                path.unlink()

    def done(self) -> int | None:
        """Return how many steps are done, None if none was begun.

        Raises:
            ConfigError: if the folder holds another compression.
        """
        accounts = self.folder.glob(f"{_NAME}*.json")
        found = [int(path.stem.removeprefix(_NAME)) for path in accounts]
        if not found:
            return None
        if self._read(max(found)).get("key") != self.key:
            raise ConfigError(
                f"The folder {str(self.folder)!r} holds the steps of another "
                "compression: the model, its loss, a step, the data, the seed or "
                "another argument is not the same. Next: take an empty folder."
            )
        return max(found)

    def read(self, step: int, like: Any) -> tuple[Any, list[WeightChange]]:
        """Return the model after a step, not compiled, and the account so far.

        Args:
            step: the number of the step, from 1; 0 for the original.
            like: the original, of the same classes of layers.

        Raises:
            ModelFileError: if the model cannot be read from its file.
        """
        model = load_model(self._model(step), live_objects(like), compile=False)
        return model, [WeightChange(**entry) for entry in self._read(step)["changes"]]

    def write(self, step: int, model: Any, changes: list[WeightChange]) -> None:
        """Keep the model after a step; what an earlier one left is removed.

        Raises:
            OutputError: if its file cannot be written, or could not be opened.
        """
        with replacing(self._model(step)) as path:
            save_stored(model, path)
            check_opens(model, path, path)
        account = {"key": self.key, "changes": [asdict(change) for change in changes]}
        with replacing(self._account(step)) as path:
            path.write_text(json.dumps(account), encoding="utf-8")
        for earlier in range(step):
            # The account first: a model without one is nothing.
            self._account(earlier).unlink(missing_ok=True)
            self._model(earlier).unlink(missing_ok=True)

    def _model(self, step: int) -> Path:
        return self.folder / f"{_NAME}{step:04}.keras"

    def _account(self, step: int) -> Path:
        return self.folder / f"{_NAME}{step:04}.json"

    def _read(self, step: int) -> dict[str, Any]:
        try:
            return json.loads(self._account(step).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"The file {str(self._account(step))!r} cannot be read: {error}. Next: "
                "take an empty folder."
            ) from error


def key_of(model: Any, steps: Sequence[Technique], data: Any, **others: Any) -> str:
    """Return what tells a compression from another one.

    Args:
        model: the original.
        steps: the techniques, with their teachers.
        data: samples; of those that come from a dataset only the kind is told.
        **others: plain values that the result depends on.
    """
    settings = model.get_compile_config() if model.compiled else None
    versions = [keras.__version__, keras.backend.backend()]
    plain = [[step.to_json() for step in steps], others, settings, versions]
    teachers = [getattr(step, "teacher", None) for step in steps]
    models = [model, *(t for t in teachers if isinstance(t, keras.Model))]
    found = hashlib.blake2b()
    for each in models:
        found.update(model_digest(each, plain).encode())
    for array in _arrays(data):
        _add(found, array)
    return found.hexdigest()


def _arrays(data: Any) -> list[Any]:
    if data is None or not is_array_data(data):
        return [np.array(type(data).__name__)]
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def _add(found: Any, leaf: Any) -> None:
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    found.update(f"{array.dtype}{tuple(array.shape)}".encode())
    rows = max(_PIECE // max(math.prod(array.shape[1:]), 1), 1)
    for start in range(0, array.shape[0] if array.shape else 0, rows):
        piece = array[start : start + rows]
        if not isinstance(piece, np.ndarray):
            piece = keras.ops.convert_to_numpy(piece)
        is_text = piece.dtype.kind in "OUS"
        found.update(repr(piece.tolist()).encode() if is_text else piece.tobytes())
