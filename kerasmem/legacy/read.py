"""A model of Keras 2 in a file, as a model of Keras 3."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasmem.errors import KerasMemWarning, ModelFileError
from kerasmem.files.declared import bounded_weights
from kerasmem.files.keras_2 import is_legacy
from kerasmem.files.load import check_model_file, first_reason, say_without_loss
from kerasmem.files.members import DAMAGED
from kerasmem.legacy.file import Assignment, LegacyFile
from kerasmem.legacy.graph import check_is_model, make
from kerasmem.legacy.hdf5 import read_h5
from kerasmem.legacy.keras_archive import read_archive
from kerasmem.legacy.made import Made
from kerasmem.legacy.saved_model import read_saved_model
from kerasmem.legacy.training import compile_arguments


def load_legacy(
    path: Path,
    custom_objects: Mapping[str, Any],
    *,
    compile: bool,  # noqa: A002 - as in Keras
) -> Made:
    """Return the model made of a file, beside what the file says of it.

    Args:
        path: a file that `check_model_file` let pass, or a folder.
        custom_objects: the user's own layers and functions by name.
        compile: False to leave loss, metrics and optimizer out.

    Raises:
        ModelFileError: if it cannot be had; the layer and the reason are named.
    """
    with bounded_weights(path):
        made, training = _made(path, custom_objects)
    if made.is_rounded:
        warnings.warn(
            f"{str(path)!r} comes from quantization-aware training: its weights are "
            'there as trained, without the rounding. Next: km.Quantize("int8-static").',
            KerasMemWarning,
            stacklevel=3,
        )
    if training is not None and compile:
        try:
            made.layer.compile(**compile_arguments(training, custom_objects))
        except Exception as error:  # noqa: BLE001 - nor has that of an unknown loss
            say_without_loss(path, first_reason(error))
    return made


def load_converted(path: str | Path) -> Made:
    """Return the model made of a file of Keras 2, beside what the file says of it.

    Args:
        path: as in `kerasmem.load_model`.

    Raises:
        ModelFileError: as `kerasmem.load_model`, and if Keras 3 wrote the file.
    """
    path = Path(path)
    check_model_file(path, memory_map=False)
    if not is_legacy(path):
        raise ModelFileError(
            f"Keras 3 wrote {str(path)!r} already: there is nothing to convert."
        )
    return load_legacy(path, {}, compile=True)


def _made(
    path: Path, custom_objects: Mapping[str, Any]
) -> tuple[Made, dict[str, Any] | None]:
    """Return the model, not compiled, and what it was compiled with."""
    try:
        file = _read(path)
        made = make(file.config, custom_objects)
        check_is_model(made)
        assignment = Assignment()
        file.weights.put_into(made, assignment)
        assignment.check_complete(made.layer)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} could not be loaded: {error}") from error
    return made, file.training


def _read(path: Path) -> LegacyFile:
    if path.is_dir():
        return read_saved_model(path)
    return read_archive(path) if path.suffix == ".keras" else read_h5(path)
