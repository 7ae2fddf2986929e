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

from kerasmem.compression.distill.schedules import A_FUNCTION
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError, InputError, OutputError
from kerasmem.files.atomic import replacing
from kerasmem.files.data import is_array_data
from kerasmem.files.load import load_model
from kerasmem.files.save import check
from kerasmem.files.write import write_model
from kerasmem.graph.clone import live_objects
from kerasmem.graph.values import model_digest
from kerasmem.records import WeightChange
from kerasmem.records.plain import record_from
from kerasmem.records.regular import open_regular, read_json_file
from kerasmem.types import Dataset, Model

_NAME = "kerasmem-step-"
_ACCOUNT = re.compile(rf"{_NAME}([0-9]{{4,9}})\.json")
_LEFT_OVER = re.compile(r"\.[0-9a-f]{8}\.(keras|json)")
_PIECE = 1 << 22
"""Entries of data that are looked at in one piece."""


@dataclass(frozen=True)
class StepAccount:
    """What is written beside a model.

    Args:
        key: what the compression is of.
        changes: what became of every weight so far.
    """

    key: str
    changes: tuple[WeightChange, ...]


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

    def begin(self, original: Model) -> int:
        """Return the number of steps that are done, and keep the original if none is.

        Raises:
            ConfigError: if the folder holds another compression.
            OutputError: if the original cannot be written, or could not be opened.
        """
        names = (_ACCOUNT.fullmatch(path.name) for path in self.folder.iterdir())
        numbers = [int(name[1]) for name in names if name]
        if not numbers:
            self.write(0, original, [])
            return 0
        if self._read(max(numbers)).key != self.key:
            raise ConfigError(
                f"The folder {str(self.folder)!r} holds the steps of another "
                "compression: the model, its loss, a step, the data, the seed or "
                "another argument is not the same. Next: take an empty folder."
            )
        return max(numbers)

    def read(self, step: int, like: Any) -> tuple[Any, list[WeightChange]]:
        """Return the model after a step, not compiled, and the account so far.

        Args:
            step: the number of the step, from 1; 0 for the original.
            like: the original, of the same classes of layers.

        Raises:
            ModelFileError: if the model cannot be read from its file.
        """
        account, path = self._read(step), self._model(step)
        try:
            open_regular(path).close()
        except OSError as error:
            raise _unreadable(path, error) from error
        model = load_model(path, live_objects(like), compile=False)
        return model, list(account.changes)

    def write(self, step: int, model: Model, changes: list[WeightChange]) -> None:
        """Keep the model after a step; what an earlier one left is removed.

        Raises:
            OutputError: if its file cannot be written, or could not be opened.
        """
        with replacing(self._model(step), follow_link=False) as path:
            check(model, path, write_model(model, path, "stored", slots=False))
        account = StepAccount(self.key, tuple(changes))
        with replacing(self._account(step), follow_link=False) as path:
            path.write_text(json.dumps(asdict(account)), encoding="utf-8")
        for earlier in range(step):
            # The account first: a model without one is nothing.
            self._account(earlier).unlink(missing_ok=True)
            self._model(earlier).unlink(missing_ok=True)

    def _model(self, step: int) -> Path:
        return self.folder / f"{_NAME}{step:04}.keras"

    def _account(self, step: int) -> Path:
        return self.folder / f"{_NAME}{step:04}.json"

    def _read(self, step: int) -> StepAccount:
        try:
            return record_from(StepAccount, read_json_file(self._account(step)))
        except (OSError, InputError) as error:
            raise _unreadable(self._account(step), error) from error


def _unreadable(path: Path, error: Exception) -> ConfigError:
    reason = str(error).removesuffix(".")
    return ConfigError(
        f"The file {str(path)!r} cannot be read: {reason}. Next: take an empty folder."
    )


def key_of(
    model: Model, steps: Sequence[Technique], data: Dataset, **others: Any
) -> str:
    """Return what tells a compression from another one.

    Args:
        model: the original.
        steps: the techniques, with their teachers.
        data: samples; of those that come from a dataset only the kind is told.
        **others: plain values that the result depends on.

    Raises:
        ConfigError: if a distillation has a function in place of a number.
    """
    settings = model.get_compile_config() if model.compiled else None
    versions = [keras.__version__, keras.backend.backend()]
    choices = [step.to_json() for step in steps]
    if A_FUNCTION in str(choices):
        raise ConfigError(
            "With checkpoint_dir, weights and temperatures of a distillation are "
            "numbers or schedules of Keras: one function cannot be told from another "
            "when the run goes on. Next: use keras.optimizers.schedules, or leave "
            "out checkpoint_dir."
        )
    plain = [choices, others, settings, versions]
    values = [value for step in steps for value in vars(step).values()]
    models = [model, *(value for value in values if isinstance(value, keras.Model))]
    digest = hashlib.blake2b()
    for each in models:
        digest.update(model_digest(each, plain).encode())
    for array in _arrays(data):
        _add(digest, array)
    return digest.hexdigest()


def _arrays(data: Dataset) -> list[Any]:
    if data is None or not is_array_data(data):
        return [np.array(type(data).__name__)]
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def _add(digest: Any, leaf: Any) -> None:
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
    rows = max(_PIECE // max(math.prod(array.shape[1:]), 1), 1)
    for start in range(0, array.shape[0] if array.shape else 0, rows):
        piece = array[start : start + rows]
        if not isinstance(piece, np.ndarray):
            piece = keras.ops.convert_to_numpy(piece)
        is_text = piece.dtype.kind in "OUS"
        digest.update(repr(piece.tolist()).encode() if is_text else piece.tobytes())
