"""What `km.compress` returns."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasmem.checks import OneOf
from kerasmem.compression.account import notable_first
from kerasmem.compression.presets import copy_files, is_of_hub
from kerasmem.compression.quantize.keras_form import keras_int8
from kerasmem.compression.writers import PresetFolder
from kerasmem.errors import OutputError
from kerasmem.files.atomic import replacing
from kerasmem.files.load import load_model
from kerasmem.files.save import Coding, save_model
from kerasmem.files.skeleton import is_mappable
from kerasmem.optional import feature
from kerasmem.records import CompressionReport, ExportReport, WeightChange
from kerasmem.records.regular import check_outside, identity
from kerasmem.types import Dataset, Model
from kerasmem.units import format_bytes

SAMPLES = 32
"""Most samples that are kept for `export`."""

FORMATS = ("kerasmem", "keras")


@dataclass(frozen=True)
class ResultFile:
    """The file, or the preset, that holds the model of a result.

    Args:
        path: of it.
        name: of the model.
        custom_objects: the user's own layers and functions by name.
        identity: of the file when it was written, see `regular.identity`.
    """

    path: Path
    name: str
    custom_objects: Any
    identity: tuple[int, ...] | None

    def check(self) -> None:
        """Raise `OutputError` if the file is another one by now."""
        if self.identity != identity(self.path):
            raise OutputError(
                f"The file of this result is no longer there: {str(self.path)!r} was "
                "written again, moved or removed. Next: compress once more."
            )

    def open(self) -> Any:
        """Return the model, mapped into memory where its file can be."""
        self.check()
        can_map = self.path.is_file() and is_mappable(self.path)
        return load_model(self.path, self.custom_objects, memory_map=can_map)

    def copy_to(self, path: Path) -> None:
        """Copy the file or the preset.

        Raises:
            ConfigError: if something is where the copy of a preset is to be.
            OutputError: if the copy cannot be written.
        """
        self.check()
        if path.exists() and self.path.samefile(path):
            return
        if self.path.is_file():
            with replacing(path) as copy:
                shutil.copyfile(self.path, copy)
            return
        check_outside(path, self.path)
        with PresetFolder(path).place() as folder:
            copy_files(self.path, folder)


class CompressionResult:
    """The compressed model, with figures of its size and its metrics.

    Args:
        model: the compressed `keras.Model`, compiled as the original was.
        report: figures of the original and of the result.
        changes: Every weight after every technique. First the weights left float, the
            largest first, then the changed ones, then biases and statistics.
        coding: how its file is written, as for `km.save_model`.
        samples: inputs of the data that it was made or judged with, a few for `export`
            to compare on; None where there was none.

    Example:
        >>> import keras, kerasmem as km
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> result = km.compress(model, km.Quantize("int8"))
        >>> type(result).__name__
        'CompressionResult'
        >>> len([change for change in result.changes if change.changed])
        1
    """

    def __init__(
        self,
        model: Model,
        report: CompressionReport,
        changes: tuple[WeightChange, ...],
        coding: Coding = "deflate",
        samples: Dataset = None,
    ) -> None:
        self.report = report
        self.changes = notable_first(changes)
        self.coding: Coding = coding
        self.samples = samples
        self._model: Any = model
        self._file: ResultFile | None = None

    def open_from(self, path: Path, custom_objects: Any) -> None:
        """Let go of the model, and open it from its file when it is asked for.

        Args:
            path: of the file, or of the folder of the preset.
            custom_objects: the user's own layers and functions by name.
        """
        name, model_file = self._model.name, identity(path)
        self._file = ResultFile(path, name, custom_objects, model_file)
        self._model = None

    @property
    def model(self) -> Any:
        """The compressed model; after a compression in low memory it is opened here."""
        if self._model is None and self._file is not None:
            self._model = self._file.open()
        return self._model

    def __repr__(self) -> str:
        before, after = self.report.before, self.report.after
        sizes = {
            "file": (before.model_file_bytes, after.model_file_bytes),
            "weights": (before.weight_bytes, after.weight_bytes),
        }
        parts = [
            f"{name} {format_bytes(old)} -> {format_bytes(new)}"
            for name, (old, new) in sizes.items()
            if old is not None and new is not None
        ]
        if state := before.optimizer_file_bytes:
            parts.insert(1, f"optimizer state in the original {format_bytes(state)}")
        parts += [
            f"{name} {old:.4g} -> {after.metrics[name]:.4g}"
            for name, old in before.metrics.items()
        ]
        count = len({c.weight for c in self.changes if c.changed})
        warning = self.report.warning
        words = f"{count} weight{'' if count == 1 else 's'} changed"
        facts = "; ".join(filter(None, (warning, ", ".join(parts), words)))
        return (
            f"<CompressionResult of {self._name!r}: {facts}, see .report and .changes>"
        )

    def __str__(self) -> str:
        """Returns the figures side by side, and why weights were left as they were."""
        from kerasmem.records.table import as_text
        from kerasmem.records.weights import left_alone_table

        has_rest = any(not change.changed for change in self.changes)
        rest = as_text(left_alone_table(self.changes)) if has_rest else ""
        return f"{self.report}\n{rest}".rstrip()

    @property
    def _name(self) -> str:
        return self.model.name if self._file is None else self._file.name

    def save(self, path: str | Path, *, format: str = "kerasmem") -> None:  # noqa: A002
        """Write the model as a smaller `.keras` file, or preset, whole or not at all.

        A pruned model opens in stock `keras.models.load_model`; one with int8 weights,
        or one coded by its entropy, does after `import kerasmem`.

        Args:
            path: where to; ends in `.keras`. A file that is there is replaced. Of a
                model of KerasHub it may be a new folder: a preset.
            format: `"keras"` for int8 weights in Keras's own form, which opens without
                kerasmem: of Dense, EinsumDense and Embedding, by their channels.

        Raises:
            ConfigError: if `path` is neither, or Keras has no form for a weight.
            OutputError: if the file cannot be written.
        """
        path = Path(path)
        OneOf(FORMATS).check("CompressionResult.save", "format", format)
        if format == "keras":
            save_model(keras_int8(self.model), path, coding=self.coding)
            return
        is_file = path.suffix == ".keras"
        file = self._file if self._model is None else None
        if file is not None and is_file == (file.path.suffix == ".keras"):
            file.copy_to(path)
        elif not is_file and is_of_hub(self.model):
            preset = PresetFolder(path)
            with preset.place() as folder:
                preset.write(self.model, folder, self.coding)
        else:
            save_model(self.model, path, coding=self.coding)

    def plot(self) -> Any:
        """Return a picture of what is left: file, memory and time beside the original.

        The time is there if `measure` names `"latency"`.

        Returns:
            A picture that a notebook shows; `.save(path)` writes it, `.figure` is
            matplotlib's.
        """
        return feature("comparison_plot")(self.report)

    def model_card(self, name: str | None = None, **metadata: str) -> str:
        """Return a model card: Markdown with metadata, as the Hugging Face Hub has it.

        It says what was done, what it cost and what that was measured on.

        Args:
            name: heading of the card; None for the model's name.
            **metadata: further entries of its YAML, such as `license="apache-2.0"`,
                `base_model=` or `pipeline_tag=`.

        Returns:
            The text of a `README.md`.

        Example:
            >>> import keras, kerasmem as km
            >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
            >>> result = km.compress(model, km.Quantize("int8"))
            >>> card = result.model_card("Small", license="apache-2.0")
            >>> card.splitlines()[1:6]  # doctest: +NORMALIZE_WHITESPACE
            ['library_name: keras', 'tags:', '- compression', '- quantization',
             'license: apache-2.0']
        """
        title = self._name if name is None else name
        return feature("model_card")(title, self.report, self.changes, metadata)

    def export(  # noqa: PLR0913 - a public entry point
        self,
        path: str | Path,
        *,
        scheme: str | None = None,
        batch_size: int | None = None,
        samples: Dataset = None,
        tolerance: float | None = None,
        input_shape: Any | None = None,
        validation_data: Dataset = None,
    ) -> ExportReport:
        """Write the model as a LiteRT or ONNX file, run back and compared with it.

        It is `km.export` of the model; see there for what the file has.

        Args:
            path: the file to write; ends in `.tflite` or `.onnx`.
            scheme: `"float"`, `"int8-dynamic"`, `"int8-static"` or `"int4"`; None for
                that of the model's weights.
            batch_size: length of the batch axis, from 1; None leaves it open.
            samples: inputs to calibrate and to compare on; None for a few of the
                `validation_data` that `km.compress` had, else of its `data`, else
                random ones.
            tolerance: the largest loss allowed; None for an accuracy loss of 0.005,
                0.02 of changed classes, a relative error of 0.05, and with `"float"` a
                relative error of 1e-5.
            input_shape: shape of the input without the batch axis, to fix the lengths
                that the model leaves open; one per input, by name or in order, if there
                are several.
            validation_data: samples with labels to judge the file on; None for
                `samples`.

        Returns:
            The `ExportReport`.

        Raises:
            ConfigError: if an argument cannot be used, or a package is missing (`pip
                install kerasmem[litert]` or `kerasmem[onnx]`).
            DataError: if the samples do not fit the model.
            ModelError: if the runtime lacks an operation of the model, or the file
                loses more than is allowed.
            OutputError: if the file cannot be written.
        """
        if samples is None and self.samples is not None:
            samples = (self.samples,)  # a tuple of inputs would be inputs and labels
        return feature("export")(
            self.model,
            path,
            scheme=scheme,
            batch_size=batch_size,
            samples=samples,
            tolerance=tolerance,
            input_shape=input_shape,
            validation_data=validation_data,
        )
