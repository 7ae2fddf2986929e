"""Writes a model to a file for another runtime after comparing their outputs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras

from kerasmem.checks import Real
from kerasmem.compression.quantize.owners import as_floats
from kerasmem.errors import ModelError, OutputError
from kerasmem.extras.litert.arguments import outputs_in_keras, with_named_inputs
from kerasmem.extras.litert.convert import LITERT, ONNX, convert, float32_copy
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
from kerasmem.records.regular import check_output
from kerasmem.records.runtimes import limit_text
from kerasmem.stats.difference import difference
from kerasmem.types import Dataset, Model

CALIBRATION, COMPARED = 128, 4
"""Maximum number of samples for calibration, and for comparing a float file."""

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
    """Export a model to a LiteRT or ONNX file whose outputs are close to the model's.

    The inputs of the file have the names of the model's inputs. The outputs are named
    `output_0`, `output_1`, .... Layers that are only active in training are left out.

    If an int8 or int4 file exceeds the tolerance, some operations get int16
    activations, or float activations with int8 weights. The report lists these
    operations. They are chosen by the loss of the file on samples:

    - For a classifier: the fraction of samples whose predicted class changes. With
      labels in `validation_data`: the drop in accuracy, but at least a quarter of that
      fraction.
    - For other models: the relative L2 error of the outputs.

    A model that rounds its activations is compared without this rounding. The loss of
    this rounding is added to the tolerance if the file rounds them alike.

    The file uses the activation ranges of a model from `km.Quantize("int8-static")`. A
    LiteRT file also uses the int8 and int4 codes of weights with per-channel scales.

    Args:
        model: Built `keras.Model`. Not modified.
        path: String or `pathlib.Path`. Output file that ends in `.tflite` or `.onnx`.
        scheme: `"float"`, `"int8-dynamic"`, `"int8-static"` or `"int4"`.
            `"int8-dynamic"` has int8 weights, and activations rounded per row at run
            time. `"int8-static"` has int8 weights and fixed activation ranges. `"int4"`
            has int4 weights in blocks (LiteRT only). Defaults to None, the scheme of
            the model's weights.
        batch_size: Int >= 1. Length of the batch axis. Defaults to None: an open axis,
            or 1 where LiteRT needs a fixed length, such as for LSTM and GRU.
        samples: Inputs for calibration and comparison, in a form of
            `kerasmem.files.data`. At most 128 are used. Defaults to None: random
            inputs. `"int8-static"` then needs a model with activation ranges.
        tolerance: Float >= 0. Maximum loss. Defaults to None: an accuracy drop of
            0.005, a fraction of changed classes of 0.02, or a relative error of 0.05.
            For `"float"`, the default is a relative error of 1e-5.
        input_shape: Shape of the input without the batch axis, to fix the open lengths
            of the model. One per input, by name or in order. Defaults to None, which
            keeps the lengths open if the runtime supports that.
        validation_data: Samples for measuring the loss, with labels for the accuracy.
            At most 512 are used. Defaults to `samples`.

    Returns:
        An `ExportReport` with path, scheme, bytes, loss, the largest output difference
        and the fraction of integer multiplications. It also lists each operation
        without the precision of the scheme, with the reason.

    Warns:
        KerasMemWarning: If the model's own rounding of activations loses more than the
            tolerance.

    Raises:
        ConfigError: If an argument is invalid or a package is missing (`pip install
            kerasmem[litert]` or `kerasmem[onnx]`).
        DataError: If the samples do not fit the model.
        ModelError: If the model has no weights yet, or the loss is too large.
            Also if the runtime does not support an operation or the open lengths.
        OutputError: If the file cannot be written.

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
    check_output(Path(path), Path(path).suffix)
    loss = getattr(model, "loss", None)
    if samples is not None:
        check_data(model, samples)
    model = with_named_inputs(model, samples)
    if batch_size is None and samples is not None:
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
        job = _with_float_file(
            FileJob(float32_copy(model), kind, scheme, arguments, arrays, batch_size)
        )
        find = _exact if scheme == FLOAT else quantized
        result = find(job, samples_to_judge)
    except OSError as error:
        raise OutputError(
            f"Could not write a temporary file for {str(path)!r}: "
            f"{error.strerror or error}. Nothing was written."
        ) from error
    _check_loss(model, result)
    with replacing(path) as temporary:
        temporary.write_bytes(result.file.content)
    is_random = samples is None and validation_data is None
    return replace(_report(path, scheme, result), has_random_samples=is_random)


def _with_float_file(job: FileJob) -> FileJob:
    """Convert to a float file, with batch size 1 if LiteRT needs a fixed one."""
    try:
        return _converted(job)
    except ModelError as error:
        if job.batch_size is None and _has_loop(job.model):
            # LiteRT runs loops over time steps only with a fixed batch size.
            arguments = [replace(a, shape=(1, *a.shape[1:])) for a in job.arguments]
            return _converted(replace(job, arguments=arguments, batch_size=1))
        shapes = {argument.name: argument.shape[1:] for argument in job.arguments}
        unknown = open_lengths(shapes)
        if not unknown:
            raise
        raise ModelError(
            f"{error} The runtime may not support the open lengths of the model "
            f"{job.model.name!r}: {unknown}. Next: pass input_shape= "
            f"(--input-shape{once_per_input(shapes)}), without the batch axis."
        ) from error


def _has_loop(model: Model) -> bool:
    return any(isinstance(layer, keras.layers.RNN) for layer in sublayers(model))


def _converted(job: FileJob) -> FileJob:
    content = convert(job.model, job.arguments, job.kind)
    few = [array[: job.batch_size or 1] for array in job.arrays]
    outputs_of(RUNTIMES[job.kind](content), job.arguments, few, job.batch_size)
    return replace(job, content=content)


def _exact(job: FileJob, judged: Judged) -> Found:
    file = RUNTIMES[job.kind](job.content)
    count = max(COMPARED, judged.batch_size or 1)
    few = [array[:count] for array in judged.arrays]
    outputs = outputs_of(file, job.arguments, few, job.batch_size)
    with as_floats(job.model):
        keras_outputs = outputs_in_keras(job.model, few, judged.batch_size)
    tolerance = _FLOAT_TOLERANCE if judged.tolerance is None else judged.tolerance
    judge = Judge(keras_outputs, [False] * len(keras_outputs), None, tolerance)
    return Found([], Tried(job.content, outputs, judge.loss(outputs)), judge)


def _check_loss(model: Model, result: Found) -> None:
    judge, loss = result.judge, result.file.loss
    if not loss <= judge.allowed:
        limit = limit_text(judge.own_tolerance, judge.own_loss)
        raise ModelError(
            f"The file differs too much from the model {model.name!r} and was not "
            f"written. Expected: {judge.measure} of at most {limit}. "
            f"Received: {loss:.3g} on {len(judge.expected[0])} samples. Next: pass a "
            "larger tolerance= (--tolerance) if this difference is acceptable."
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
        tolerance=judge.own_tolerance,
        own_loss=judge.own_loss,
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
