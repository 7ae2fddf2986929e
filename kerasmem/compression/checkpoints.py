"""What a compression has done so far, in a folder, so that a killed run goes on.

After every step the model lies there as `step-0002.keras`, and beside it, written last,
`step-0002.json` with the account of its weights. Whoever goes on begins from the file,
also the run that wrote it: so a run that was killed ends with the same weights.
"""

import hashlib
import json
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
from kerasmem.files.save import save_stored
from kerasmem.graph.clone import live_objects
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange


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

    def done(self, steps: int) -> int:
        """Return how many of so many steps are done.

        Raises:
            ConfigError: if the folder holds another compression.
        """
        found = [n for n in range(1, steps + 1) if self._account(n).is_file()]
        if not found:
            return 0
        last = max(found)
        if self._read(last)["key"] != self.key:
            raise ConfigError(
                f"The folder {str(self.folder)!r} holds the steps of another "
                "compression: the model, a step, the data, the seed or another "
                "argument is not the same. Next: take an empty folder."
            )
        return last

    def read(self, step: int, like: Any) -> tuple[Any, list[WeightChange]]:
        """Return the model after a step, and the account so far.

        Args:
            step: the number of the step, from 1.
            like: the original, of the same classes of layers, loss and metrics.

        Raises:
            ModelFileError: if the model cannot be read from its file.
        """
        model = load_model(self._model(step), live_objects(like))
        return model, [WeightChange(**entry) for entry in self._read(step)["changes"]]

    def write(self, step: int, model: Any, changes: list[WeightChange]) -> None:
        """Keep the model after a step; what an earlier one left is removed."""
        with replacing(self._model(step)) as path:
            save_stored(model, path)
        account = {"key": self.key, "changes": [asdict(change) for change in changes]}
        with replacing(self._account(step)) as path:
            path.write_text(json.dumps(account), encoding="utf-8")
        for earlier in range(1, step):
            # The account first: a model without one is nothing.
            self._account(earlier).unlink(missing_ok=True)
            self._model(earlier).unlink(missing_ok=True)

    def _model(self, step: int) -> Path:
        return self.folder / f"step-{step:04}.keras"

    def _account(self, step: int) -> Path:
        return self.folder / f"step-{step:04}.json"

    def _read(self, step: int) -> dict[str, Any]:
        try:
            return json.loads(self._account(step).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"The file {str(self._account(step))!r} cannot be read: {error}. Next: "
                "take an empty folder."
            ) from error


def key_of(model: Any, steps: tuple[Technique, ...], data: Any, **others: Any) -> str:
    """Return what tells a compression from another one.

    Args:
        model: the original.
        steps: the techniques.
        data: samples; of those that come from a dataset only the kind is told.
        **others: plain values that the result depends on.
    """
    found = hashlib.sha256()
    plain = {"steps": [step.to_json() for step in steps], **others}
    found.update(json.dumps(plain, sort_keys=True, default=repr).encode())
    for variable in model.weights:
        found.update(variable.path.encode())
        found.update(np.ascontiguousarray(to_numpy(variable)).tobytes())
    if is_array_data(data):
        for array in keras.tree.flatten(data):
            found.update(np.ascontiguousarray(to_numpy(array)).tobytes())
    else:
        found.update(type(data).__name__.encode())
    return found.hexdigest()
