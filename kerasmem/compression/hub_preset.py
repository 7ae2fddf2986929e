"""A preset of KerasHub in, a smaller one out: its backbone goes from file to file."""

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kerasmem.compression.file_to_file import FileResult, compress_file
from kerasmem.compression.hub_preset_files import readable, unpack
from kerasmem.compression.jobs import Job
from kerasmem.files.archive import file_sizes
from kerasmem.files.atomic import new_folder
from kerasmem.files.contents import file_size
from kerasmem.files.load import load_model
from kerasmem.files.preset import (
    CONFIG,
    TASK,
    TASK_WEIGHTS,
    check_new_folder,
    config_of,
    weight_files,
    weights_of,
)
from kerasmem.files.save import Coding
from kerasmem.records.regular import check_outside, unchanged


def compress_preset(job: Job, coding: Coding, custom_objects: Any) -> FileResult:
    """Write a preset whose backbone is smaller, and return what became of it.

    Tokenizer, preprocessor, assets and what a task has besides are copied.

    Args:
        job: of which folder, and where to.
        coding: how the weights are written, as for `km.save_model`.
        custom_objects: the user's own layers and functions by name.

    Raises:
        ConfigError: as by `compress_file`, or if the output is there.
        ModelFileError: if a file of the preset is missing or damaged.
        OutputError: if the new one cannot be written.
    """
    check_new_folder(job.output)
    coding = readable(coding)
    source = job.path
    weights, ours = weights_of(source), set(weight_files(source))
    present = [source / name for name in (CONFIG, TASK) if (source / name).is_file()]
    configs = {file.name: config_of(file) for file in present}
    with new_folder(job.output) as folder, unchanged(file_sizes(source)):
        whole = folder.with_name("backbone.keras")
        result = compress_file(Job(weights, job.steps, whole), coding, custom_objects)
        unpack(whole, folder, configs)
        kept = {file for file in ours if file.name == TASK_WEIGHTS}
        _copy_rest(source, folder, {*ours, *present} - kept)
    before, after = file_size(source), file_size(job.output)
    report = replace(
        result.untimed,
        before=replace(result.untimed.before, **before._asdict()),
        after=replace(result.untimed.after, **after._asdict()),
    )
    named = (result._name, report, result.changes, coding, custom_objects)
    return PresetResult(job.output, *named)


def _copy_rest(source: Path, folder: Path, others: set[Path]) -> None:
    for file in sorted(source.rglob("*")):
        if file.is_file() and file not in others:
            copy = folder / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


class PresetResult(FileResult):
    """The result of a compression from preset to preset; its model is opened on demand.

    It is the task of the preset, or the backbone where there is none.
    """

    @cached_property
    def model(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The compressed model."""
        self._check_output()
        return load_model(self._output, self._custom_objects)

    def save(self, path: str | Path, *, format: str = "kerasmem") -> None:  # noqa: A002
        """Write the preset anew: a copy of that which was written.

        Args:
            path: a new folder, or a `.keras` file of the task.
            format: as for any result.

        Raises:
            ConfigError: if there is something at `path`.
            OutputError: if it cannot be written, or the result's own folder is no
                longer there.
        """
        path = Path(path)
        if self._is_opened(format) or path.suffix == ".keras":
            _ = self.model
            super().save(path, format=format)
            return
        self._check_output()
        if path.exists() and self._output.samefile(path):
            return
        check_new_folder(path)
        check_outside(path, self._output)
        with new_folder(path) as folder:
            _copy_rest(self._output, folder, set())
