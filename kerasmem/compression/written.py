"""The file of a result: written once, measured, and copied to where it is saved.

It lies in a temporary folder as long as somebody holds it. What it was written of may
be trained on: then it is the file of another model, which a fingerprint tells.
"""

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasmem.compression.measure import size_of
from kerasmem.errors import KerasMemError, OutputError
from kerasmem.files.atomic import held_folder, replacing
from kerasmem.files.contents import FileSize, file_size
from kerasmem.files.deflating import crc32
from kerasmem.files.save import Coding, is_saved_as_it_is, save_model
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy


@dataclass(frozen=True)
class WrittenFile:
    """The file of a model, for as long as this is held.

    Args:
        size: of the file.
        path: where it lies; None if there is its size alone, as of a file that could
            not be opened: who saves the model hears why.
        fingerprint: of the model that it was written of.
    """

    size: FileSize
    path: Path | None = None
    fingerprint: tuple[Any, ...] = ()

    def is_of(self, model: Any) -> bool:
        """Return whether the file is there, and is the one `model` would make."""
        if self.path is None or not self.path.is_file():
            return False
        if self.path.stat().st_size != self.size.file_bytes or not all(
            map(_saves_variables_alone, sublayers(model))
        ):
            return False
        return self.fingerprint == fingerprint(model)

    def copy_to(self, path: Path) -> None:
        """Copy the file, whole or not at all.

        Raises:
            OutputError: if the copy cannot be written.
        """
        with replacing(path) as copy:
            shutil.copyfile(str(self.path), copy)


def written(model: Any, coding: Coding) -> WrittenFile:
    """Return the file of a model, as `km.save_model` writes and checks it.

    Args:
        model: a built model.
        coding: as for `km.save_model`.

    Raises:
        OutputError: if there is no room for it.
    """
    try:
        with ExitStack() as scope:
            folder = scope.enter_context(held_folder(Path(tempfile.gettempdir())))
            path = folder / "model.keras"
            save_model(model, path, coding=coding)
            made = WrittenFile(file_size(path), path, fingerprint(model))
            # Also at the end of the process. One that is killed leaves it to the next
            # that makes such a folder; a process that was forked has no part in it.
            weakref.finalize(made, _close, scope.pop_all().close, os.getpid())
            return made
    except KerasMemError:
        return WrittenFile(size_of(model, coding=coding))
    except OSError as error:
        raise OutputError(
            "Could not write a temporary file to measure its size, in "
            f"{tempfile.gettempdir()!r}: {error}"
        ) from error


def fingerprint(model: Any) -> tuple[Any, ...]:
    """Return what is another for a model that would make another file.

    It is its config, how it is compiled, and a checksum of every variable.
    """
    compiled = model.get_compile_config() if model.compiled else None
    configs = [_of_config(model.get_config), compiled]
    weights = [
        (v.path, tuple(v.shape), str(v.dtype), _checksum(to_numpy(v)))
        for v in model.variables
    ]
    return (json.dumps(configs, default=_name), *weights)


def _saves_variables_alone(layer: Any) -> bool:
    """Return False for a layer with a vocabulary, or a state of the user's own."""
    assets = getattr(layer, "save_assets", None)
    return is_saved_as_it_is(layer) and assets is None


def _of_config(get_config: Callable[[], Any]) -> Any:
    try:
        return get_config()
    except NotImplementedError:
        return None


def _checksum(values: np.ndarray) -> int:
    if values.dtype.hasobject:
        return crc32(repr(values.tolist()).encode())
    return crc32(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)


def _close(close: Callable[[], None], process: int) -> None:
    if os.getpid() == process:
        close()
