"""A compression by a model whose weights stay in files: opened, and written."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from kerasmem.backends.heap import trim_heap
from kerasmem.compression.file_to_file import FileResult, WantsMemoryError, plain
from kerasmem.compression.jobs import Job
from kerasmem.compression.result import CompressionResult
from kerasmem.compression.written import WrittenFile
from kerasmem.errors import KerasMemWarning
from kerasmem.files.archive import is_weights_alone
from kerasmem.files.atomic import replacing
from kerasmem.files.contents import file_size
from kerasmem.files.described import described_model, offloaded_model
from kerasmem.files.load import check_model_file
from kerasmem.files.plain import check_has_model
from kerasmem.files.save import check
from kerasmem.files.weights import Coding
from kerasmem.files.write import write_model
from kerasmem.graph.outputs import takes_loss


@dataclass(frozen=True)
class Room:
    """A model whose weights stay in files, and a place for the one made of it.

    Args:
        model: it.
        path: takes the place of the output when the room is left.
        job: of which file, and where to.
        custom_objects: the user's own layers and functions by name.
    """

    model: Any
    path: Path
    job: Job
    custom_objects: Any

    def write(self, model: Any, coding: Coding) -> WrittenFile:
        """Write a model as `km.save_model` does, check it, and return its size."""
        trim_heap()
        check(model, self.path, write_model(model, self.path, coding))
        return WrittenFile(file_size(self.path))

    def result(self, whole: CompressionResult) -> FileResult:
        """Return a result that opens its model on demand, once the file is in place."""
        made = (whole.untimed, whole.changes, whole.coding, self.custom_objects)
        return FileResult(self.job.output, whole.model.name, *made)


def can_go_by_layers(
    job: Job,
    custom_objects: Any,
    must: bool,  # noqa: FBT001 - see below
) -> bool:
    """Return whether the model of a job can be evaluated layer by layer.

    Args:
        job: of which file.
        custom_objects: the user's own layers and functions by name.
        must: whether it is an error if not, and no warning.

    Raises:
        ModelFileError: if the file cannot be loaded.
        WantsMemoryError: if the model evaluates itself in its own way.
    """
    with described_model(job.path, custom_objects) as model:
        own, kind = keras.Model, type(model)
        names = ("test_step", "compute_metrics", "get_metrics_result")
        is_plain = all(getattr(kind, n) is getattr(own, n) for n in names)
        if not model.compiled or (is_plain and takes_loss(model)):
            return True
        reason = (
            f"The model {model.name!r} of class {kind.__name__} evaluates itself in a "
            "way of its own, for which its weights have to be in memory."
        )
    if must:
        raise WantsMemoryError(
            f"{reason} Next: low_memory=False (no --low-memory on the command line)."
        )
    warnings.warn(reason, KerasMemWarning, stacklevel=3)
    return False


@contextmanager
def offloading(job: Job | None, custom_objects: Any) -> Iterator[Room | None]:
    """Give the model of a job with its weights in files; None without a job.

    What is written in the scope takes the place of the output at its end, and is gone
    after an error, also Ctrl-C.

    Args:
        job: of which file, and where to.
        custom_objects: the user's own layers and functions by name.

    Raises:
        ModelFileError: if the file cannot be loaded.
        OutputError: if the output cannot be written.
    """
    if job is None:
        yield None
        return
    if is_weights_alone(job.path):
        check_has_model(job.path)
    else:
        check_model_file(job.path, memory_map=False)
    with (
        replacing(job.output) as written,
        plain(job.path, written.parent) as source,
        offloaded_model(source, custom_objects, written.parent) as model,
    ):
        yield Room(model, written, job, custom_objects)
