"""A model as a file for another runtime, run back and compared before it is there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.converting import Argument
from kerasmem.checks import Real
from kerasmem.compression.quantize.owners import as_floats
from kerasmem.errors import ModelError, OutputError
from kerasmem.extras.litert.arguments import outputs_in_keras, with_named_inputs
from kerasmem.extras.litert.convert import (
    LITERT,
    ONNX,
    compute_in_float32,
    convert,
    copy_of,
)
from kerasmem.extras.litert.file_loss import Judge, Judged
from kerasmem.extras.litert.interpreters import LiteRT, Onnx, outputs_of
from kerasmem.extras.litert.options import (
    FLOAT,
    check_batch_size,
    check_calibrates,
    checked_scheme,
    inputs_and_samples,
    is_onnx,
    judged_samples,
)
from kerasmem.extras.litert.precisions import Found, Tried, integer_share
from kerasmem.extras.litert.quantized import FileJob, quantized
from kerasmem.files.atomic import replacing
from kerasmem.files.data import check_data, sample_count, whole_batch
from kerasmem.graph.input_shapes import once_per_input, open_lengths
from kerasmem.graph.layers import sublayers
from kerasmem.records import ExportReport, OperationPrecision
from kerasmem.stats.difference import difference
from kerasmem.types import Dataset, Model

CALIBRATION, COMPARED = 128, 4
"""Most samples to calibrate on, and to compare a float file on."""

RUNTIMES = {LITERT: LiteRT, ONNX: Onnx}
_FLOAT_TOLERANCE, _LEAST_OUTPUT = 1e-5, 1e-6


def export(  # noqa: PLR0913 - the public entry point
    model: Model,
    path: str | Path,
    *,
    scheme: str | None = None,
    batch_size: int | None = None,
    samples: Dataset = None,
    tolerance: float | None = None,
    input_shape: Any | None = None,
    validation_data: Dataset = None,
) -> ExportReport:
    """Export `model` to LiteRT or ONNX; write the file only if it is close to `model`.

    The inputs of the file have the names of the model's inputs, its outputs are named
    `output_0` and so on. Layers that act in training alone are not in it.

    An int8 or int4 file is written in every case: operations that lose too much in few
    bits get int16 activations, or float activations with int8 weights, and the report
    lists them. Which those are is chosen by what the file loses on samples:

    - For a classifier: the share of samples with another class than that of the model.
      With labels in `validation_data`: the accuracy that is lost, but at least a
      quarter of that share.
    - For other models: the relative L2 error of the outputs.

    Ranges of activations that the model has already, from
    `km.Quantize("int8-static")`, are those of the file. So are codes of int8 and int4
    weights with a scale per channel in a LiteRT file.

    Args:
        model: a built `keras.Model`; it is not changed.
        path: the file to write; ends in `.tflite` or `.onnx`.
        scheme: `"float"`; `"int8-dynamic"`, int8 weights and activations that are
            rounded row by row at run time; `"int8-static"`, int8 weights and
            activations in fixed ranges; `"int4"`, int4 weights in blocks (LiteRT only).
            None for the scheme of the model's weights.
        batch_size: length of the batch axis, from 1; None leaves it open, or makes it 1
            if LiteRT needs a fixed one, as for LSTM and GRU.
        samples: inputs to calibrate and to compare on, in any of the forms that
            `kerasmem.files.data` lists; at most 128 are used. None for random ones,
            which `"int8-static"` takes only if the model has its own ranges.
        tolerance: the largest loss allowed; None for an accuracy loss of 0.005, 0.02
            of changed classes, a relative error of 0.05, and with `"float"` a relative
            error of 1e-5.
        input_shape: shape of the input without the batch axis, to fix the lengths that
            the model leaves open; one per input, by name or in order, if there are
            several; None leaves them open, where the runtime can.
        validation_data: samples to judge the file on, with labels if the accuracy
            counts; at most 512 are used. None for `samples`.

    Returns:
        The `ExportReport`: path, scheme, bytes, loss, the largest difference of an
        output, the share of multiplications on integers, and each operation that has
        not the precision of its scheme, with the reason.

    Raises:
        ConfigError: if an argument cannot be used, or a package is missing (`pip
            install kerasmem[litert]` or `kerasmem[onnx]`).
        DataError: if the samples do not fit the model.
        ModelError: if the model has no weights yet, or the runtime lacks an operation
            of it or cannot take its open lengths, or the file loses more than is
            allowed.
        OutputError: if the file cannot be written.

    Example:
        >>> import tempfile, kerasmem as km
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = km.export(model, Path(folder, "model.tflite"))
        >>> report.scheme, report.difference < 1e-5
        ('float', True)
    """
    scheme = checked_scheme(model, path, scheme)
    check_batch_size(batch_size)
    check_calibrates(model, scheme, samples)
    if tolerance is not None:
        tolerance = Real(least=0).check("export", "tolerance", tolerance)
    _check_can_be_written(Path(path))
    loss = getattr(model, "loss", None)
    model = with_named_inputs(model, samples)
    if batch_size is None and samples is not None:
        check_data(model, samples)
        batch_size = whole_batch(model, samples, sample_count(samples) or 0)
    arguments, arrays = inputs_and_samples(
        model, samples, CALIBRATION, batch_size=batch_size, input_shape=input_shape
    )
    samples_to_judge = judged_samples(model, arguments, arrays, validation_data)
    samples_to_judge = replace(
        samples_to_judge, tolerance=tolerance, model_loss=loss, batch_size=batch_size
    )
    kind = ONNX if is_onnx(path) else LITERT
    try:
        job, content = _convert_with_lengths(
            _Floats(model, kind, arguments, arrays, batch_size)
        )
        if scheme == FLOAT:
            result = _exact(job, content, samples_to_judge)
        else:
            whole = FileJob(
                content, model, scheme, kind, job.arguments, arrays, job.batch_size
            )
            result = quantized(whole, samples_to_judge)
    except OSError as error:
        raise OutputError(
            f"Could not write a temporary file to make {str(path)!r} of: "
            f"{error.strerror or error}. Nothing was written."
        ) from error
    _check_loss(model, result)
    with replacing(path) as temporary:
        temporary.write_bytes(result.file.content)
    return _report(path, scheme, result)


def _check_can_be_written(path: Path) -> None:
    if not path.parent.is_dir() or path.is_dir():
        what = "it is a folder" if path.is_dir() else "there is no such folder"
        raise OutputError(f"Could not write {str(path)!r}: {what}. Nothing was made.")


@dataclass(frozen=True)
class _Floats:
    """A float file to make.

    Args:
        model: the model; it is not changed.
        kind: of the file, as for `convert`.
        arguments: its inputs.
        arrays: an array per input to compare on.
        batch_size: length of the batch axis, None for an open one.
    """

    model: Any
    kind: str
    arguments: Sequence[Argument]
    arrays: Sequence[np.ndarray]
    batch_size: int | None

    def with_batch(self, size: int) -> "_Floats":
        """Return this with a fixed length of the batch axis."""
        arguments = [replace(a, shape=(size, *a.shape[1:])) for a in self.arguments]
        return replace(self, arguments=arguments, batch_size=size)

    def with_lengths_of_samples(self) -> "_Floats":
        """Return this with inputs of the lengths of the samples."""
        arguments = [
            replace(argument, shape=(argument.shape[0], *array.shape[1:]))
            for argument, array in zip(self.arguments, self.arrays, strict=True)
        ]
        return replace(self, arguments=arguments)


def _convert_with_lengths(job: _Floats) -> tuple[_Floats, bytes]:
    """Return a float file, with a batch axis of length 1 where LiteRT needs that.

    Raises:
        ModelError: if there is none, or none with the open lengths.
    """
    try:
        return job, _content(job)
    except ModelError as error:
        if job.batch_size is None and _has_loop(job.model):
            # LiteRT runs loops over time steps for a batch of a fixed length alone.
            job = job.with_batch(1)
            return job, _content(job)
        shapes = {argument.name: argument.shape[1:] for argument in job.arguments}
        unknown = open_lengths(shapes)
        if not unknown or not _can_be_made(job.with_lengths_of_samples()):
            raise
        raise ModelError(
            f"The file cannot have the open lengths of the model {job.model.name!r}: "
            "with lengths that are known it can be made. Expected: known lengths. "
            f"Received: {unknown}. Next: pass input_shape= "
            f"(--input-shape{once_per_input(shapes)}), without the batch axis."
        ) from error


def _has_loop(model: Model) -> bool:
    return any(isinstance(layer, keras.layers.RNN) for layer in sublayers(model))


def _can_be_made(job: _Floats) -> bool:
    try:
        _content(job)
    except ModelError:
        return False
    return True


def _content(job: _Floats) -> bytes:
    content = convert(copy_of(job.model), job.arguments, job.kind)
    few = [array[: job.batch_size or 1] for array in job.arrays]
    outputs_of(RUNTIMES[job.kind](content), job.arguments, few, job.batch_size)
    return content


def _exact(job: _Floats, content: bytes, judged: Judged) -> Found:
    file = RUNTIMES[job.kind](content)
    count = max(COMPARED, judged.batch_size or 1)
    few = [array[:count] for array in judged.arrays]
    outputs = outputs_of(file, job.arguments, few, job.batch_size)
    copy = copy_of(job.model)
    compute_in_float32(copy)
    with as_floats(copy):
        keras_outputs = outputs_in_keras(copy, few, judged.batch_size)
    tolerance = _FLOAT_TOLERANCE if judged.tolerance is None else judged.tolerance
    judge = Judge(keras_outputs, [False] * len(keras_outputs), None, tolerance)
    return Found([], Tried(content, outputs, judge.loss(outputs)), judge)


def _check_loss(model: Model, result: Found) -> None:
    judge, loss = result.judge, result.file.loss
    if not loss <= judge.allowed:
        raise ModelError(
            f"The file is too far from the model {model.name!r} and was not written. "
            f"Expected: {judge.measure} of at most {judge.allowed:g}. Received: "
            f"{loss:.3g} on {len(judge.expected[0])} samples. Next: a larger "
            "tolerance= (--tolerance), if that is near enough."
        )


def _report(path: str | Path, scheme: str, result: Found) -> ExportReport:
    judge, file = result.judge, result.file
    return ExportReport(
        path=str(path),
        scheme=scheme,
        file_bytes=len(file.content),
        samples=len(judge.expected[0]),
        measure=judge.measure,
        loss=file.loss,
        tolerance=judge.allowed,
        difference=difference(file.outputs, judge.expected, _LEAST_OUTPUT),
        integer_share=integer_share(result.choices) if scheme != FLOAT else 0.0,
        operations=tuple(
            OperationPrecision(
                c.operation.name, c.operation.kind, c.precision, c.reason
            )
            for c in result.choices
            if c.reason
        ),
    )
