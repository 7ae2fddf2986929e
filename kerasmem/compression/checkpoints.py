"""Checkpoints of a compression, so that a killed run can resume.

After each step, the model is written as `kerasmem-step-0002.keras`. A `.json` file of
the same name follows with the weight changes. Every run continues from the file, even
the run that wrote it, so a resumed run ends with the same weights.
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
"""Number of data entries to hash at a time."""


@dataclass(frozen=True)
class StepAccount:
    """Content of the `.json` file of a step: key and changes so far."""

    key: str
    changes: tuple[WeightChange, ...]


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of one compression, identified by a key of `key_of`."""

    folder: Path
    key: str

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"Could not create the folder {str(self.folder)!r}: {error.strerror}."
            ) from error
        for path in self.folder.iterdir():
            if _LEFT_OVER.fullmatch(path.name):  # from a killed run
                path.unlink()

    def begin(self, original: Model) -> int:
        """Returns the number of finished steps. Writes the original if there are none.

        Raises:
            ConfigError: If the folder contains another compression.
            OutputError: If the original cannot be written and read back.
        """
        names = (_ACCOUNT.fullmatch(path.name) for path in self.folder.iterdir())
        numbers = [int(name[1]) for name in names if name]
        if not numbers:
            self.write(0, original, [])
            return 0
        if self._read(max(numbers)).key != self.key:
            raise ConfigError(
                f"The folder {str(self.folder)!r} contains another compression: the "
                "model, loss, steps, data, seed or another argument differs. Next: use "
                "an empty folder."
            )
        return max(numbers)

    def read(self, step: int, like: Any) -> tuple[Any, list[WeightChange]]:
        """Returns the uncompiled model after a step and its changes.

        Step 0 is the original. `like` provides the custom layer classes.

        Raises:
            ModelFileError: If the model cannot be loaded.
        """
        account, path = self._read(step), self._model(step)
        try:
            open_regular(path).close()
        except OSError as error:
            raise _unreadable(path, error) from error
        model = load_model(path, live_objects(like), compile=False)
        return model, list(account.changes)

    def write(self, step: int, model: Model, changes: list[WeightChange]) -> None:
        """Writes the model after a step and deletes earlier checkpoints.

        Raises:
            OutputError: If the file cannot be written and read back.
        """
        with replacing(self._model(step), follow_link=False) as path:
            check(model, path, write_model(model, path, "stored", slots=False))
        account = StepAccount(self.key, tuple(changes))
        with replacing(self._account(step), follow_link=False) as path:
            path.write_text(json.dumps(asdict(account)), encoding="utf-8")
        for earlier in range(step):
            # The `.json` first, because a model file without it is ignored.
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
        f"Cannot read the file {str(path)!r}: {reason}. Next: use an empty folder."
    )


def key_of(
    model: Model, steps: Sequence[Technique], data: Dataset, **others: Any
) -> str:
    """Returns a digest that identifies a compression.

    Teachers are part of the digest. Datasets count only by class name. `others`
    are plain values that affect the result.

    Raises:
        ConfigError: If a distillation uses a plain function as a schedule.
    """
    settings = model.get_compile_config() if model.compiled else None
    versions = [keras.__version__, keras.backend.backend()]
    choices = [step.to_json() for step in steps]
    if A_FUNCTION in str(choices):
        raise ConfigError(
            "With checkpoint_dir, weights and temperatures of a distillation must be "
            "numbers or Keras schedules, because two functions cannot be compared when "
            "a run resumes. Next: use keras.optimizers.schedules, or leave out "
            "checkpoint_dir."
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
