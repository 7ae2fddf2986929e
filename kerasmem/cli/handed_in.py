"""The model files that a command was handed: what they weigh, and that they stay."""

import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerasmem.errors import ConfigError, ModelFileError

_ROLES = ("model", "teacher", "student")
"""Arguments that are such files."""


def check_handed_in(options: Namespace) -> None:
    """Raise unless every model file is there, and the output is none of them.

    Raises:
        ModelFileError: if one is missing.
        ConfigError: if the output is one, by whatever path or link.
    """
    output: Path | None = vars(options).get("output")
    for model in (vars(options).get(role) for role in _ROLES):
        if model is None:
            continue
        if not os.path.lexists(model):
            raise ModelFileError(f"There is no file {model!r}.")
        if output is None or not (output.exists() and Path(model).exists()):
            continue
        if output.samefile(model):
            raise ConfigError(
                "The output is the file that was handed in, which is never modified. "
                f"Received: {model!r} and -o {str(output)!r}. Next: give -o another "
                "name."
            )


def of_its_file(figures: Any, path: str) -> Any:
    """Return a record of a model's figures, its file the one that was handed in."""
    from kerasmem.files.size import stored_bytes

    return replace(figures, file_bytes=stored_bytes(path))


def file_sentence(path: str, whose: str) -> str:
    """Return which file was measured, and whether an optimizer has a part of it.

    Args:
        path: of the model.
        whose: what the figures of the model stand under.
    """
    from kerasmem.files.optimizer_state import optimizer_state

    state = optimizer_state(path)
    kept = ", with its optimizer's state" if state and state.bytes else ""
    return f"The file {whose} is the one that was handed in{kept}."
