"""Output of a compressed model: none, a file or a KerasHub preset."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from kerasmem.checks import invalid
from kerasmem.compression.measure import size_or_warning
from kerasmem.compression.presets import is_of_hub, write_compressed, write_preset
from kerasmem.files.archive import stored_bytes
from kerasmem.files.atomic import new_folder, replacing
from kerasmem.files.contents import FileSize
from kerasmem.files.preset import check_new_folder
from kerasmem.files.save import Coding, check
from kerasmem.files.write import write_model
from kerasmem.types import Model


@dataclass(frozen=True)
class NoFile:
    """No output; only measures the size of a file, or of a preset if `is_preset`."""

    is_preset: bool = False

    def place(self) -> AbstractContextManager[Path]:
        """Returns an empty scope."""
        return nullcontext(Path())

    def write(self, model: Model, place: Path, coding: Coding) -> FileSize | None:
        """Returns the file size of the model."""
        del place
        if not self.is_preset or not is_of_hub(model):
            return size_or_warning(model, coding=coding)
        with tempfile.TemporaryDirectory() as folder:
            preset = Path(folder, "preset")
            write_preset(model, preset, coding)
            return FileSize(stored_bytes(preset))


@dataclass(frozen=True)
class KerasFile:
    """Writes a `.keras` file to `path`."""

    path: Path

    def place(self) -> AbstractContextManager[Path]:
        """Returns a scope with a temporary path that replaces `path` on exit."""
        return replacing(self.path)

    def write(self, model: Model, place: Path, coding: Coding) -> FileSize:
        """Writes and checks the model and returns the file size."""
        check(model, place, write_model(model, place, coding))
        return FileSize(stored_bytes(place))


@dataclass(frozen=True)
class PresetFolder:
    """Writes a KerasHub preset to a new folder.

    `source` is the preset of the original backbone, or `None` if the model is the full
    preset.
    """

    path: Path
    source: Path | None = None

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yields a temporary folder that is moved to `path` on exit."""
        check_new_folder(self.path)
        with new_folder(self.path) as folder:
            yield folder

    def write(self, model: Model, place: Path, coding: Coding) -> FileSize:
        """Writes the preset and returns the size of all its files."""
        if self.source is None:
            if not is_of_hub(model):
                path = str(self.path)
                raise invalid("compress", "output", path, "a file that ends in .keras")
            write_preset(model, place, coding)
        else:
            write_compressed(model, place, coding, self.source)
        return FileSize(stored_bytes(place))


Writer = NoFile | KerasFile | PresetFolder
