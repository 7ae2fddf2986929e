"""The result of `km.compress`."""

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
"""Maximum number of samples that a result keeps for `export`."""

FORMATS = ("kerasmem", "keras")


@dataclass(frozen=True)
class ResultFile:
    """File or preset that contains the model of a result.

    `identity` is the identity of the file after writing, see `regular.identity`.
    """

    path: Path
    name: str
    custom_objects: Any
    identity: tuple[int, ...] | None

    def check(self) -> None:
        """Raises `OutputError` if the file has changed since it was written."""
        if self.identity != identity(self.path):
            raise OutputError(
                f"The file of this result has changed: {str(self.path)!r} was "
                "rewritten, moved or removed. Next: compress again."
            )

    def open(self) -> Any:
        """Returns the model, memory-mapped if the file allows it."""
        self.check()
        can_map = self.path.is_file() and is_mappable(self.path)
        return load_model(self.path, self.custom_objects, memory_map=can_map)

    def copy_to(self, path: Path) -> None:
        """Copies the file or the preset.

        Raises:
            ConfigError: If the target folder of a preset exists.
            OutputError: If the copy cannot be written.
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
    """The compressed model with its report and the change of every weight.

    Args:
        model: The compressed `keras.Model`, compiled like the original.
        report: A `CompressionReport` on the original and the compressed model.
        changes: Tuple of `WeightChange`, one per weight and technique. Large float
            weights come first, then the changed weights, then biases and statistics.
        coding: Coding of the file, as in `km.save_model`. Defaults to `"deflate"`.
        samples: A few inputs for `export`, or `None` if there was no data.

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
        """Releases the model. `model` then loads it from a file on first access.

        Args:
            path: Path of the file or preset folder.
            custom_objects: Custom layers and functions by name.
        """
        name, model_file = self._model.name, identity(path)
        self._file = ResultFile(path, name, custom_objects, model_file)
        self._model = None

    @property
    def model(self) -> Any:
        """The compressed model. In low memory mode, it is loaded on first access."""
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
        """Returns a table of the figures and the reasons for unchanged weights."""
        from kerasmem.records.table import as_text
        from kerasmem.records.weights import left_alone_table

        has_rest = any(not change.changed for change in self.changes)
        rest = as_text(left_alone_table(self.changes)) if has_rest else ""
        return f"{self.report}\n{rest}".rstrip()

    @property
    def _name(self) -> str:
        return self.model.name if self._file is None else self._file.name

    def save(self, path: str | Path, *, format: str = "kerasmem") -> None:  # noqa: A002
        """Writes the model as a `.keras` file or a KerasHub preset, atomically.

        A pruned model opens in plain `keras.models.load_model`. Quantized weights and
        entropy coding need `import kerasmem` first.

        Args:
            path: Path that ends in `.keras`. An existing file is replaced. For a
                KerasHub model, also a new folder, which becomes a preset.
            format: `"kerasmem"` or `"keras"`. `"keras"` writes int8 weights in the form
                of Keras, which opens without kerasmem. It supports per-channel scales
                of Dense, EinsumDense and Embedding. Defaults to `"kerasmem"`.

        Raises:
            ConfigError: If `path` is invalid, or Keras has no form for a weight.
            OutputError: If the file cannot be written.
        """
        path = Path(path)
        OneOf(FORMATS).check("CompressionResult.save", "format", format)
        if format == "keras":
            # Keras cannot read entropy coding.
            coding = "deflate" if self.coding == "entropy" else self.coding
            save_model(keras_int8(self.model), path, coding=coding)
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
        """Plots file size, memory and latency relative to the original.

        Latency is shown if `measure` included `"latency"`.

        Returns:
            A picture that a notebook displays. `.save(path)` writes it, and `.figure`
            is the matplotlib figure.
        """
        return feature("comparison_plot")(self.report)

    def model_card(self, name: str | None = None, **metadata: str) -> str:
        """Returns a model card for the Hugging Face Hub: Markdown with metadata.

        The card lists the steps, the costs, the metrics and how they were measured.

        Args:
            name: Heading of the card. Defaults to the name of the model.
            **metadata: Additional YAML entries, such as `license="apache-2.0"`,
                `base_model=` or `pipeline_tag=`.

        Returns:
            String. The text of a `README.md`.

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
        """Exports the model to LiteRT or ONNX and verifies the exported file.

        Equivalent to `km.export(result.model, ...)`.

        Args:
            path: Path of the output file. Ends in `.tflite` or `.onnx`.
            scheme: `"float"`, `"int8-dynamic"`, `"int8-static"` or `"int4"`. Defaults
                to the scheme of the model's weights.
            batch_size: Integer. Fixed batch size of the file. Defaults to `None` for a
                dynamic batch size.
            samples: Calibration and comparison inputs. Defaults to a few samples of
                the `validation_data` or `data` of `km.compress`, else random inputs.
            tolerance: Float. Maximum allowed loss. Defaults to 0.005 of accuracy, 0.02
                of changed classes, or a relative error of 0.05 (1e-5 with `"float"`).
            input_shape: Input shape without the batch axis, to fix dynamic lengths.
                With several inputs, a dict by name or a list.
            validation_data: Labeled samples to evaluate the file on. Defaults to
                `samples`.

        Returns:
            An `ExportReport`.

        Raises:
            ConfigError: If an argument is invalid, or a package is missing (`pip
                install kerasmem[litert]` or `kerasmem[onnx]`).
            DataError: If the samples do not fit the model.
            ModelError: If the runtime lacks an operation of the model, or the loss
                exceeds `tolerance`.
            OutputError: If the file cannot be written.
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
