"""Input models of `compress`: in memory, or with weights that stay on disk."""

import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import psutil

from kerasmem.backends import current
from kerasmem.checks import OneOf
from kerasmem.compression.cluster import Cluster
from kerasmem.compression.measure import size_or_warning
from kerasmem.compression.presets import warn_of_preprocessor
from kerasmem.compression.prune import Prune
from kerasmem.compression.prune.apply import is_by_magnitude
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.result import CompressionResult
from kerasmem.compression.technique import Technique
from kerasmem.compression.writers import KerasFile, NoFile, PresetFolder, Writer
from kerasmem.errors import ConfigError, KerasMemWarning, as_received
from kerasmem.files.archive import (
    file_sizes,
    is_weights_alone,
    opened_weights,
    stored_bytes,
)
from kerasmem.files.atomic import held_folder, writing
from kerasmem.files.contents import FileSize, file_size
from kerasmem.files.datasets import datasets
from kerasmem.files.described import can_be_described, offloaded_model
from kerasmem.files.load import load_model
from kerasmem.files.preset import is_preset, weights_of
from kerasmem.graph.clone import compile_settings
from kerasmem.graph.from_config import compile_with
from kerasmem.graph.outputs import as_loss, takes_loss
from kerasmem.records.regular import unchanged
from kerasmem.types import Model

_SHARE = 1 / 6
"""Fraction of the available memory above which a model is kept on disk."""


@dataclass(frozen=True)
class Loaded:
    """A model that was loaded only for `compress`, so no copy is needed.

    `path` is used for the reported file size. `output` is the path that the caller
    writes afterwards: without a suffix, the size of a preset is reported.
    """

    model: Any
    path: str | Path
    output: Path | None = None


@dataclass(frozen=True)
class InMemory:
    """A model in memory, or a file that is loaded into memory.

    `given` is a `keras.Model`, a `Loaded` or a path.
    """

    given: Any
    custom_objects: Any

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Yields a model to copy.

        Raises:
            ConfigError: If the input is neither a model nor a path.
            ModelFileError: If the file cannot be loaded.
        """
        model_or_path = self.given
        is_model = isinstance(model_or_path, keras.Model)
        with current().replicating(model_or_path) if is_model else nullcontext():
            if is_model:
                yield model_or_path
            elif isinstance(model_or_path, Loaded):
                yield model_or_path.model
            elif isinstance(model_or_path, str | Path):
                yield load_model(model_or_path, self.custom_objects)
            else:
                raise ConfigError(
                    "Expected a keras.Model or the path of a saved model. Received: "
                    f"model_or_path={as_received(model_or_path)}."
                )

    def writer(self, output: Any) -> Writer:
        """Returns the writer for `output`."""
        if output is None:
            later = self.given.output if isinstance(self.given, Loaded) else None
            return NoFile(later is not None and later.suffix != ".keras")
        is_file = Path(output).suffix == ".keras"
        return KerasFile(Path(output)) if is_file else PresetFolder(Path(output))

    def leave(self, result: CompressionResult, output: Any) -> None:
        """Does nothing, because the model stays in memory."""

    def size(self) -> FileSize | None:
        """Returns the size of the input file, or of the file that Keras would write."""
        if isinstance(self.given, keras.Model):
            return size_or_warning(self.given, stored=True)
        is_loaded = isinstance(self.given, Loaded)
        return file_size(self.given.path if is_loaded else self.given)


@dataclass
class InFiles:
    """A model whose weights stay on disk.

    Args:
        path: Path of the model file or preset folder. A preset only provides its
            backbone.
        output: Output path. Its parent folder also holds the temporary files.
        custom_objects: Custom layers and functions by name.
        is_judged: Whether the model is evaluated, layer by layer.
        must: Whether to raise an error instead of a warning if this is not possible.

    Attributes:
        is_whole: Whether the model was loaded into memory after all.
    """

    path: Path
    output: Path
    custom_objects: Any
    is_judged: bool
    must: bool
    is_whole: bool = field(default=False, init=False)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Yields the model. Each layer has its weights in memory only during its call.

        If the model cannot be evaluated layer by layer, it is loaded with a warning.

        Raises:
            ConfigError: If it cannot be evaluated layer by layer and `must` is set.
            ModelFileError: If the file cannot be loaded, or changes within the scope.
            OutputError: If temporary files cannot be written.
        """
        path = self.path
        if is_preset(path):
            warn_of_preprocessor(path, self.custom_objects or {})
            path, files = weights_of(path), file_sizes(path)
        else:
            files = ()
        with ExitStack() as scope:
            scope.enter_context(unchanged(files))
            with writing(self.output, "Nothing was written."):
                room = held_folder(self.output.absolute().parent)
                scratch = scope.enter_context(room)
                model = offloaded_model(path, self.custom_objects, scratch)
                model = scope.enter_context(model)
            reason = _why_not_by_layers(model) if self.is_judged else None
            if reason is not None:
                if self.must:
                    raise ConfigError(
                        f"{reason} Next: low_memory=False (no --low-memory on the "
                        "command line)."
                    )
                warnings.warn(reason, KerasMemWarning, stacklevel=4)
                self.is_whole = True
                scope.close()
                model = load_model(path, self.custom_objects)
            yield model

    def writer(self, output: Any) -> Writer:
        """Returns the writer for `output`."""
        if is_preset(self.path):
            return PresetFolder(Path(output), self.path)
        return KerasFile(Path(output))

    def leave(self, result: CompressionResult, output: Any) -> None:
        """Makes the result load its model from `output` on first access."""
        if not self.is_whole:
            result.open_from(Path(output).absolute(), self.custom_objects)

    def size(self) -> FileSize:
        """Returns the size of the file, or of all files of the preset."""
        return file_size(self.path)


def compile_anew(model: Model, loss: Any, metrics: Any) -> None:
    """Recompiles `model` with the caller's loss or metrics."""
    settings = compile_settings(model) or {}
    if loss is not None:
        settings["loss"] = as_loss(loss)
    if metrics is not None:
        settings["metrics"] = metrics
    if settings.get("loss") is not None:
        compile_with(model, {"optimizer": "adam", **settings})
    else:
        raise ConfigError(
            f"The model {model.name!r} has no loss, so metrics= is not enough. Next: "
            "give loss= too."
        )


def source_of(
    model_or_path: Any,
    output: Any,
    custom_objects: Any,
    low_memory: bool | None,  # noqa: FBT001 - three values
    steps: Sequence[Technique] | None,
    asks: Mapping[str, Any],
) -> InMemory | InFiles:
    """Returns the source for the input of `compress`.

    `asks` contains the caller's arguments by name, `None` for missing ones.
    """
    if offloads(low_memory, model_or_path, output, steps, asks):
        return InFiles(
            path=Path(model_or_path),
            output=Path(output),
            custom_objects=custom_objects,
            is_judged=asks["validation_data"] is not None,
            must=low_memory is True,
        )
    return InMemory(model_or_path, custom_objects)


def offloads(
    low_memory: bool | None,  # noqa: FBT001 - three values
    model_or_path: Any,
    output: Any,
    steps: Sequence[Technique] | None,
    asks: Mapping[str, Any],
) -> bool:
    """Returns whether the weights stay on disk during the compression.

    `low_memory=None` decides by size. `steps` is `None` for a search. `asks` contains
    the caller's arguments by name, `None` for missing ones.

    Raises:
        ConfigError: If `low_memory` is `True`, but the weights cannot stay on disk.
    """
    OneOf((None, True, False)).check("compress", "low_memory", low_memory)
    if low_memory is False or (low_memory is None and output is None):
        return False
    is_path = isinstance(model_or_path, str | Path)
    is_folder = is_path and is_preset(model_or_path)
    if not (low_memory or is_folder or (is_path and _is_large(model_or_path))):
        return False
    names = [name for name, value in asks.items() if value is not None]
    reason = _why_not(model_or_path, output, steps, names)
    if reason is None:
        return True
    if low_memory:
        advice = f"{_ADVICE[reason]} or " if reason in _ADVICE else ""
        raise ConfigError(
            f"low_memory=True is not possible, because {reason}. Next: {advice}leave "
            "out low_memory (--low-memory on the command line)."
        )
    if not is_folder:
        warnings.warn(
            f"The model in {str(model_or_path)!r} is loaded into memory completely, "
            f"although its weights are large for the available memory: {reason}.",
            KerasMemWarning,
            stacklevel=3,
        )
    return False


def _why_not_by_layers(model: Model) -> str | None:
    own, kind = keras.Model, type(model)
    names = ("test_step", "compute_metrics", "get_metrics_result")
    is_plain = all(getattr(kind, n) is getattr(own, n) for n in names)
    if not model.compiled or (is_plain and takes_loss(model)):
        return None
    return (
        f"The model {model.name!r} of class {kind.__name__} overrides the evaluation "
        "of Keras, so its weights must be in memory."
    )


_SAMPLES = ("data", "validation_data", "max_drop", "loss", "metrics", "--data")
"""Arguments that need samples; the model then runs layer by layer."""


_ADVICE = {
    "the model is in memory already": "give the path of its file",
    "there is no file to write": "give output=",
    "the output of a preset is a preset": "give a new folder as the output",
}
_IN_MEMORY, _NO_OUTPUT, _NO_FOLDER = _ADVICE


def _why_not(
    path: Any,
    output: Any,
    steps: Sequence[Technique] | None,
    asked: Sequence[str],
) -> str | None:
    others = [name for name in asked if name not in _SAMPLES]
    if others:
        return f"{others[0]} needs the model in memory"
    if not isinstance(path, str | Path):
        return _IN_MEMORY
    if output is None:
        return _NO_OUTPUT
    if steps is None:
        return "a search needs the model in memory"
    for step in steps:
        reason = _why_not_step(step)
        if reason is not None:
            return f"the step {step.name!r} needs all weights at once: {reason}"
    if asked and is_preset(path):
        return "samples need the task of a preset, but only its backbone is compressed"
    return _why_not_file(Path(path), Path(output))


def _why_not_step(step: Technique) -> str | None:
    if isinstance(step, Prune):
        ranks = f"criterion={step.criterion!r}, pattern={step.pattern!r}"
        return None if is_by_magnitude(step) else f"it ranks entries by {ranks}"
    if isinstance(step, Quantize):
        return "its rounding or its scales need samples" if step.takes_samples else None
    return None if isinstance(step, Cluster) else "it reads or changes several layers"


def _why_not_file(path: Path, output: Path) -> str | None:
    if is_preset(path):
        if output.suffix == ".keras":
            return _NO_FOLDER
        path = weights_of(path)
    is_described = is_weights_alone(path) or can_be_described(path)
    if path.exists() and not is_described:
        return f"{str(path)!r} is not a .keras file of Keras 3"
    return None


def _is_large(path: str | Path) -> bool:
    path, most = Path(path), _SHARE * psutil.virtual_memory().available
    if not path.is_file() or path.suffix not in (".keras", ".h5", ".json"):
        return False
    if stored_bytes(path) > most or not zipfile.is_zipfile(path):
        return stored_bytes(path) > most
    with opened_weights(path) as weights:
        arrays = [] if weights is None else datasets(weights)
    return sum(each.nbytes for each in arrays) > most
