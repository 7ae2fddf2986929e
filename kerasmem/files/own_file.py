"""Saving a model over the file that its weights lie in."""

import os
from pathlib import Path
from typing import Any

from kerasmem.errors import OutputError
from kerasmem.files.atomic import replacing


def save_beside(model: Any, file: os.stat_result) -> None:
    """Let `model.save` take the name of a file, where it would empty it first.

    Weights that were not read yet would be lost, and the process with them.

    Args:
        model: whose weights lie in the file.
        file: what the system tells of it.
    """
    save = model.save

    def save_safely(filepath: Any, *overwrite: bool, **options: Any) -> None:
        if not _is_it(filepath, file):
            save(filepath, *overwrite, **options)
            return
        if False in (*overwrite, options.get("overwrite")):
            raise OutputError(f"The weights of the model lie in {str(filepath)!r}.")
        with replacing(filepath) as written:
            save(written, *overwrite, **options)

    object.__setattr__(model, "save", save_safely)


def _is_it(path: Any, file: os.stat_result) -> bool:
    if not (isinstance(path, str | os.PathLike) and Path(path).exists()):
        return False
    return os.path.samestat(Path(path).stat(), file)
