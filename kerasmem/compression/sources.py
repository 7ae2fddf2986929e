"""What is compressed: a model in memory, or one whose weights stay in files."""

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
from kerasmem.compression.measure import size_of
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
from kerasmem.graph.clone import compile_settings, to_read
from kerasmem.graph.from_config import compile_with
from kerasmem.graph.outputs import as_loss, takes_loss
from kerasmem.records.regular import unchanged
from kerasmem.types import Model

_SHARE = 1 / 6
"""Of the available memory: a model with more weights may not fit."""


@dataclass(frozen=True)
class Loaded:
    """A model that was loaded for `compress` alone, which takes it as it is.

    Args:
        model: the model; it is compiled anew.
        path: of its file, whose size the report tells.
    """

    model: Any
    path: str | Path


@dataclass(frozen=True)
class InMemory:
    """A model in memory, or a file that is loaded.

    Args:
        given: a `keras.Model`, a `Loaded` or a path.
        custom_objects: the user's own layers and functions by name.
        is_evaluated: whether the model is compiled anew or evaluated.
    """

    given: Any
    custom_objects: Any
    is_evaluated: bool

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Give a model to make a copy of.

        A model that is compiled anew or evaluated is not the one that was handed in.

        Raises:
            ConfigError: if there is none.
            ModelFileError: if the file cannot be loaded.
        """
        model_or_path = self.given
        is_model = isinstance(model_or_path, keras.Model)
        with current().replicating(model_or_path) if is_model else nullcontext():
            if is_model:
                yield to_read(model_or_path) if self.is_evaluated else model_or_path
            elif isinstance(model_or_path, Loaded):
                yield model_or_path.model
            elif isinstance(model_or_path, str | Path):
                yield load_model(model_or_path, self.custom_objects)
            else:
                raise ConfigError(
                    "Expected a keras.Model or the path of a saved one. Received: "
                    f"model_or_path={as_received(model_or_path)}."
                )

    def writer(self, output: Any) -> Writer:
        """Return what writes the compressed model."""
        if output is None:
            return NoFile()
        is_file = Path(output).suffix == ".keras"
        return KerasFile(Path(output)) if is_file else PresetFolder(Path(output))

    def leave(self, result: CompressionResult, output: Any) -> None:
        """Do what is left to do with a result: nothing."""

    def size(self) -> FileSize:
        """Return the size of the input file, or of the file that Keras writes."""
        if isinstance(self.given, keras.Model):
            return size_of(self.given, stored=True)
        is_loaded = isinstance(self.given, Loaded)
        return file_size(self.given.path if is_loaded else self.given)


@dataclass
class InFiles:
    """A model whose weights stay in files.

    Args:
        path: its file, or the folder of a preset, whose backbone it is.
        output: beside which there is room for what its weights become.
        custom_objects: the user's own layers and functions by name.
        is_judged: whether the model is evaluated, layer by layer.
        must: whether it is an error, and no warning, if it cannot be.

    Attributes:
        is_whole: whether it was loaded whole, because it cannot be.
    """

    path: Path
    output: Path
    custom_objects: Any
    is_judged: bool
    must: bool
    is_whole: bool = field(default=False, init=False)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Give the model; a layer is lent its weights for as long as it computes.

        A model that cannot be evaluated so is loaded whole, with a warning.

        Raises:
            ConfigError: if it must not be.
            ModelFileError: if the file cannot be loaded, or changes within the scope.
            OutputError: if there is no room for what weights become.
        """
        path = self.path
        if is_preset(path):
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
        """Return what writes the compressed model."""
        if is_preset(self.path):
            return PresetFolder(Path(output), self.path)
        return KerasFile(Path(output))

    def leave(self, result: CompressionResult, output: Any) -> None:
        """Have a result open its model from its file, when it is asked for."""
        if not self.is_whole:
            result.open_from(Path(output).absolute(), self.custom_objects)

    def size(self) -> FileSize:
        """Return the size of the file, or of all files of the preset."""
        return file_size(self.path)


def compile_anew(model: Model, loss: Any, metrics: Any) -> None:
    """Compile `model` anew, with a loss and metrics of the caller's if given."""
    settings = compile_settings(model) or {}
    if loss is not None:
        settings["loss"] = as_loss(loss)
    if metrics is not None:
        settings["metrics"] = metrics
    if settings.get("loss") is not None:
        compile_with(model, {"optimizer": "adam", **settings})
    elif metrics is not None:
        raise ConfigError(
            f"The model {model.name!r} has no loss. Give loss= beside metrics=."
        )


def source_of(
    model_or_path: Any,
    output: Any,
    custom_objects: Any,
    low_memory: bool | None,  # noqa: FBT001 - three values
    steps: Sequence[Technique] | None,
    asks: Mapping[str, Any],
) -> InMemory | InFiles:
    """Return what is compressed.

    Args:
        model_or_path: the model, or the path of a saved one.
        output: the file to write, None for none.
        custom_objects: the user's own layers and functions by name.
        low_memory: as for `offloads`.
        steps: the techniques; None for a search.
        asks: arguments of the caller by name, None for those not given.

    Raises:
        ConfigError: if `low_memory` is True, and the weights cannot stay in files.
        ModelFileError: if the file cannot be loaded.
    """
    if offloads(low_memory, model_or_path, output, steps, asks):
        return InFiles(
            path=Path(model_or_path),
            output=Path(output),
            custom_objects=custom_objects,
            is_judged=asks["validation_data"] is not None,
            must=low_memory is True,
        )
    is_evaluated = steps is None or any(v is not None for v in asks.values())
    return InMemory(model_or_path, custom_objects, is_evaluated)


def offloads(
    low_memory: bool | None,  # noqa: FBT001 - three values
    model_or_path: Any,
    output: Any,
    steps: Sequence[Technique] | None,
    asks: Mapping[str, Any],
) -> bool:
    """Return whether the weights of a model stay in files while it is compressed.

    Args:
        low_memory: what the caller says: True, False, or None for what suits.
        model_or_path: what it gives as the model.
        output: the file to write, None for none.
        steps: the techniques; None for a search.
        asks: arguments of the caller by name, None for those not given.

    Raises:
        ConfigError: if `low_memory` is True, and they cannot.
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
        raise ConfigError(
            f"With low_memory=True no model is held in memory, and {reason}. Next: "
            "leave low_memory out (--low-memory on the command line)."
        )
    if not is_folder:
        warnings.warn(
            f"The model in {str(model_or_path)!r} is held in memory as a whole, though "
            f"its weights are large against the memory there is: {reason}.",
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
        f"The model {model.name!r} of class {kind.__name__} evaluates itself in a "
        "way of its own, for which its weights have to be in memory."
    )


_SAMPLES = ("data", "validation_data", "max_drop", "loss", "metrics", "--data")
"""Arguments for which the model runs on samples, layer by layer."""


def _why_not(
    path: Any,
    output: Any,
    steps: Sequence[Technique] | None,
    asked: Sequence[str],
) -> str | None:
    others = [name for name in asked if name not in _SAMPLES]
    if others:
        return f"{others[0]} takes one"
    if not isinstance(path, str | Path):
        return "there is one already: give the path of its file"
    if output is None:
        return "there is no file to write: give output="
    if steps is None:
        return "a search tries many"
    for step in steps:
        reason = _why_not_step(step)
        if reason is not None:
            return f"the step {step.name!r} takes all weights at once: {reason}"
    if asked and is_preset(path):
        return "samples go into the task of a preset, not into its backbone"
    return _why_not_file(Path(path), Path(output))


def _why_not_step(step: Technique) -> str | None:
    if isinstance(step, Prune):
        ranks = f"criterion={step.criterion!r}, pattern={step.pattern!r}"
        return None if is_by_magnitude(step) else f"it ranks entries by {ranks}"
    if isinstance(step, Quantize):
        return "it rounds on samples" if step.takes_samples else None
    return None if isinstance(step, Cluster) else "it makes other layers"


def _why_not_file(path: Path, output: Path) -> str | None:
    if is_preset(path):
        if output.suffix == ".keras":
            return "a preset becomes a preset: give a new folder as the output"
        path = weights_of(path)
    is_described = is_weights_alone(path) or can_be_described(path)
    if path.exists() and not is_described:
        return f"{str(path)!r} is no .keras file of Keras 3"
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
