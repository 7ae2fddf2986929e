"""Where a compressed model goes: nowhere, into a file, or into a preset of KerasHub."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from kerasmem.checks import invalid
from kerasmem.compression.measure import size_of
from kerasmem.compression.presets import is_of_hub, write_compressed, write_preset
from kerasmem.files.atomic import new_folder, replacing
from kerasmem.files.contents import FileSize, file_size
from kerasmem.files.preset import check_new_folder
from kerasmem.files.save import Coding, check
from kerasmem.files.write import write_model
from kerasmem.types import Model


class NoFile:
    """No output."""

    def place(self) -> AbstractContextManager[Path]:
        """Return a scope, as of all writers."""
        return nullcontext(Path())

    def write(self, model: Model, place: Path, coding: Coding) -> FileSize:
        """Return the size that a file of the model has."""
        del place
        return size_of(model, coding=coding)


@dataclass(frozen=True)
class KerasFile:
    """A `.keras` file.

    Args:
        path: where it goes.
    """

    path: Path

    def place(self) -> AbstractContextManager[Path]:
        """Return a scope with a temporary path, which takes its place at the end."""
        return replacing(self.path)

    def write(self, model: Model, place: Path, coding: Coding) -> FileSize:
        """Write a model as `km.save_model` does, check it, and return its size."""
        check(model, place, write_model(model, place, coding))
        return file_size(place)


@dataclass(frozen=True)
class PresetFolder:
    """A new folder for a preset of KerasHub.

    Args:
        path: where it goes.
        source: the preset of which the model is the backbone; None for a model that is
            the whole of it.
    """

    path: Path
    source: Path | None = None

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Give a temporary folder, which takes its place at the end."""
        check_new_folder(self.path)
        with new_folder(self.path) as folder:
            yield folder

    def write(self, model: Model, place: Path, coding: Coding) -> FileSize:
        """Write the preset, and return the size of all its files."""
        if self.source is None:
            if not is_of_hub(model):
                path = str(self.path)
                raise invalid("compress", "output", path, "a file that ends in .keras")
            write_preset(model, place, coding)
        else:
            write_compressed(model, place, coding, self.source)
        return file_size(place)


Writer = NoFile | KerasFile | PresetFolder
