"""A model's file in, a smaller one out, a few pieces of weights in memory at a time.

The model is only described: it has layers, shapes and a config, and no weights. Each
step changes that, and says what the entries of every variable become. They are made as
the new file is written, of the entries in the old one.
"""

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import keras

from kerasmem.backends.lazy import described_source
from kerasmem.compression.chain import warn_if_stale
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.cluster import apply as cluster
from kerasmem.compression.jobs import Job
from kerasmem.compression.prune import Prune
from kerasmem.compression.prune import apply as prune
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.apply import warn_if_left_float
from kerasmem.compression.quantize.aware.learned import is_aware
from kerasmem.compression.quantize.schemes import quantize_described
from kerasmem.compression.result import FORMATS, CompressionResult
from kerasmem.compression.technique import Technique
from kerasmem.compression.working import LazyChanges, Streams
from kerasmem.errors import ConfigError, OutputError
from kerasmem.files.archive import is_weights_alone, shards_of
from kerasmem.files.atomic import replacing
from kerasmem.files.contents import FileSize, file_size
from kerasmem.files.described import described_model
from kerasmem.files.entries import InFile, Readable
from kerasmem.files.load import check_model_file, load_model, made_whole
from kerasmem.files.memory_map import is_mappable
from kerasmem.files.plain import check_has_model, write_plain
from kerasmem.files.preset import CONFIG
from kerasmem.files.save import check, is_saved_as_it_is
from kerasmem.files.weights import Coding
from kerasmem.files.write import write_model
from kerasmem.graph.clone import compile_as
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import nbytes, nonzero, parameters
from kerasmem.records import CompressionReport, ModelFigures, WeightChange
from kerasmem.records.regular import identity, unchanged
from kerasmem.stages import OPENING, stage

_APPLY: Mapping[type[Technique], Callable[[Any, Any, Streams], LazyChanges]] = {
    Prune: prune.prune_in_blocks,
    Cluster: cluster.cluster_in_blocks,
    Quantize: quantize_described,
}
"""What takes a described model, a config and the streams."""


def compress_file(
    job: Job, coding: Coding = "deflate", custom_objects: Any = None
) -> CompressionResult:
    """Write a smaller file of a model, and return what became of it.

    Args:
        job: of what, and where to.
        coding: how the file is written, as for `km.save_model`.
        custom_objects: the user's own layers and functions by name.

    Raises:
        ConfigError: if a layer of the model saves its weights in a way of its own, or
            a regular expression means no weight.
        ModelError: if a technique finds nothing to do.
        ModelFileError: if the file cannot be loaded.
        OutputError: if the new one cannot be written.
    """
    if is_weights_alone(job.path):
        check_has_model(job.path)
    else:
        check_model_file(job.path, memory_map=False)
    size = file_size(job.path)
    stage(OPENING)
    with (
        replacing(job.output) as written,
        plain(job.path, written.parent) as source,
        described_model(source, custom_objects) as model,
        _reading(source) as file,
    ):
        _check_layers(model)
        compile_as(model, model)
        streams = Streams(lambda variable: _in_file(variable, file))
        before = [*model.weights]
        found = {id(v): streams.of(v) for v in before}
        told = []
        for step in job.steps:
            stage(step.name)
            told.append(_APPLY[type(step)](model, step, streams))
        made = write_model(model, written, coding, entries_of=streams.of)
        check(model, written, made)
        changes = [change for tell in told for change in tell()]
        report = CompressionReport(
            before=_figures(before, found.get, size),
            after=_figures(model.weights, streams.by_id, file_size(written)),
            steps=tuple(step.to_json() for step in job.steps),
        )
        warn_if_stale(model, list(job.steps), changes)
        warn_if_left_float(changes, report.before.weight_bytes)
        name = model.name
    return FileResult(job.output, name, report, tuple(changes), coding, custom_objects)


class WantsMemoryError(ConfigError):
    """A model whose weights have to be in memory, which its layers tell."""


def _check_layers(model: Any) -> None:
    """Raise if the values of a weight are needed to write a file of it."""
    odd = [layer for layer in sublayers(model) if not is_saved_as_it_is(layer)]
    if type(model).save is not keras.Model.save:
        odd = [model]
    if odd:
        raise WantsMemoryError(
            f"The layer {odd[0].name!r} of class {type(odd[0]).__name__} saves its "
            "weights in a way of its own, for which they have to be in memory. Next: "
            "low_memory=False (no --low-memory on the command line)."
        )
    if is_aware(model):
        raise WantsMemoryError(
            "Scales that were learned are read from a model in memory. Next: "
            "low_memory=False (no --low-memory on the command line)."
        )


@contextmanager
def plain(path: Path, folder: Path) -> Iterator[Path]:
    """Give a file whose weights lie in it as they are: another one if they do not.

    Args:
        path: a file as of `compress_file`.
        folder: where to put another one.

    Raises:
        ModelFileError: if the file changes within the scope.
    """
    if is_weights_alone(path):
        files = {path, path.with_name(CONFIG), *shards_of(path)}
        with unchanged(files), made_whole(path, folder) as whole:
            yield whole
        return
    with unchanged([path]):
        if is_mappable(path):
            yield path
            return
        made = folder / "plain.keras"
        write_plain(path, made)
        yield made
        made.unlink()


@contextmanager
def _reading(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _in_file(variable: Any, file: int) -> Readable | None:
    source = described_source(variable)
    if source is None:
        return None
    return InFile(source.shape, source.dtype, file, source.place)


def _figures(
    variables: Sequence[Any], entries: Callable[[int], Any], size: FileSize
) -> ModelFigures:
    count = 0
    for variable in variables:
        known = entries(id(variable))
        if known is None:
            count += nonzero(variable)
        elif parameters(variable):
            if known.nonzero is None:  # no step has looked at all of it
                deque(known.pieces(), maxlen=0)
            count += known.nonzero or 0
    return ModelFigures(
        **size._asdict(),
        weight_bytes=sum(map(nbytes, variables)),
        parameters=sum(map(parameters, variables)),
        nonzero=count,
    )


class FileResult(CompressionResult):
    """The result of a compression from file to file; its model is opened on demand.

    Args:
        output: the file.
        name: of the model.
        report: the figures.
        changes: every weight after every technique.
        coding: how the file is written.
        custom_objects: the user's own layers and functions by name.
    """

    def __init__(
        self,
        output: Path,
        name: str,
        report: CompressionReport,
        changes: tuple[WeightChange, ...],
        coding: Coding,
        custom_objects: Any,
    ) -> None:
        super().__init__(None, report, changes, coding)
        del self.model  # the property below, until somebody asks
        self._output, self._named = output, name
        self._identity = identity(output)
        self._custom_objects = custom_objects

    @cached_property
    def model(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The compressed model, mapped into memory where its file can be."""
        self._check_output()
        mapped = is_mappable(self._output)
        return load_model(self._output, self._custom_objects, memory_map=mapped)

    @property
    def _name(self) -> str:
        return self._named

    def _check_output(self) -> None:
        if self._identity != identity(self._output):
            raise OutputError(
                f"The file of this result is no longer there: {str(self._output)!r} "
                "was written again, moved or removed. Next: compress once more."
            )

    def _is_opened(self, format: str) -> bool:  # noqa: A002
        """Return whether there is a model, or has to be."""
        return "model" in vars(self) or format != FORMATS[0]

    def save(self, path: str | Path, *, format: str = "kerasmem") -> None:  # noqa: A002
        """Write the model as a file: a copy of that which was written.

        Args:
            path: where to, as for any result.
            format: as for any result; `"keras"` opens the model.

        Raises:
            ConfigError: if `path` does not end in `.keras`.
            OutputError: if the file cannot be written, or the result's own file is no
                longer there.
        """
        if self._is_opened(format) or Path(path).suffix != ".keras":
            super().save(path, format=format)
            return
        self._check_output()
        if Path(path).exists() and self._output.samefile(path):
            return
        with replacing(path) as written:
            shutil.copyfile(self._output, written)
