"""Saving a model as a `.keras` file that is really smaller.

Keras stores the members of a `.keras` archive uncompressed, so a pruned model's zeros
take their full size. Deflated members are read by stock `keras.models.load_model` just
as well, bit for bit.
"""

import shutil
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from kerasmem.errors import ConfigError
from kerasmem.files.atomic import replacing, scratch_folder
from kerasmem.graph.optimizer import fresh_optimizer

_DATED = "metadata.json"


def save_model(
    model: Any, path: str | Path, *, include_optimizer: bool = False
) -> None:
    """Save `model` as a deflated `.keras` file, whole or not at all.

    Args:
        model: a built Keras model.
        path: where to; ends in `.keras`. A file that is there is replaced.
        include_optimizer: False saves the optimizer as it was before the first step:
            its settings are kept, what it has learned (two floats per weight with
            Adam) is not.

    Raises:
        ConfigError: if `path` does not end in `.keras`, or `model` is no model.
        ModelError: if the optimizer cannot be made anew.
        OutputError: if the file cannot be written.
    """
    path = Path(path)
    if not isinstance(model, keras.Model):
        raise ConfigError(f"Expected a keras.Model. Received: model={model!r}.")
    if path.suffix != ".keras":
        raise ConfigError(
            "A model is saved as a file that ends in .keras. "
            f"Received: path={str(path)!r}."
        )
    with replacing(path) as deflated, scratch_folder(path.parent) as folder:
        stored = folder / path.name
        with ExitStack() as scope:
            if not include_optimizer:
                # Built all the same: stock Keras warns about a file whose optimizer
                # has no slots, and slots of zeros deflate to next to nothing.
                scope.enter_context(fresh_optimizer(model, built=True))
            model.save(stored)
        deflate(stored, deflated)


def save_stored(model: Any, path: str | Path) -> None:
    """Save `model` as Keras itself does, without any state of the optimizer.

    Its size is what a smaller file is fairly compared with.
    """
    with fresh_optimizer(model, built=False):
        model.save(path)


def deflate(source: Path, target: Path) -> None:
    """Write the archive `source` to `target` with its members deflated."""
    with (
        zipfile.ZipFile(source) as stored,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as deflated,
    ):
        for member in stored.infolist():
            if member.filename == _DATED:
                # As it is: deflated, its size would change with the second.
                text = stored.read(member)
                deflated.writestr(member.filename, text, zipfile.ZIP_STORED)
                continue
            large = member.file_size >= 1 << 31
            with (
                stored.open(member) as reader,
                deflated.open(member.filename, "w", force_zip64=large) as writer,
            ):
                shutil.copyfileobj(reader, writer, 1 << 20)
