"""A model as a file for another runtime, run back and compared before it is there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.converting import Argument
from kerasmem.compression.quantize.config import STATIC
from kerasmem.compression.quantize.owners import as_floats, quantized_variables
from kerasmem.compression.result import SAMPLES
from kerasmem.errors import ModelError, OutputError
from kerasmem.exporting.arguments import (
    call_flat,
    with_named_inputs,
)
from kerasmem.exporting.convert import (
    DYNAMIC,
    FLOAT,
    ONNX,
    TOLERANCES,
    checked,
    compute_in_float32,
    convert,
    inputs_and_samples,
    is_onnx,
)
from kerasmem.exporting.interpreters import (
    LiteRT,
    Onnx,
    difference,
    outputs_of,
)
from kerasmem.files.atomic import replacing
from kerasmem.files.data import check_data, sample_count, whole_batch
from kerasmem.graph.clone import clone
from kerasmem.graph.input_shapes import once_per_input, open_lengths
from kerasmem.graph.layers import sublayers
from kerasmem.records import ExportReport

_LEAST = {FLOAT: 1.0, DYNAMIC: 1e-6, STATIC: 127.0}

Conversion = tuple[bytes, list[np.ndarray], list[np.ndarray]]
"""The file, what it gives and what it should."""


def export(  # noqa: PLR0913 - the public entry point
    model: Any,
    path: str | Path,
    *,
    scheme: str | None = None,
    batch_size: int | None = None,
    samples: Any = None,
    tolerance: float | None = None,
    input_shape: Any | None = None,
) -> ExportReport:
    """Export `model` to LiteRT or ONNX; write the file only if its outputs agree.

    The inputs of the file have the names of the model's, its outputs are `output_0`
    and so on. It computes in float32, also where the model computes in half precision
    or rounds its activations itself, and is compared with the model doing so too. The
    file of a model that `"int8-static"` made takes and gives int8 codes and is run by
    LiteRT's reference kernels.

    Args:
        model: a built `keras.Model`; it is not changed.
        path: where to; ends in `.tflite`, or in `.onnx`, whose weights are floats.
        scheme: `"float"`, or `"int8-dynamic"` (weights of 1,024 entries and more in
            int8, activations rounded as they come), or `"int8-static"`, for a model
            that it made; None for the one that suits the weights of the model.
        batch_size: length of the batch axis, from 1; None leaves it open.
        samples: inputs to compare on, in any of the forms that `kerasmem.files.data`
            lists, of which the first 4 are taken; None for random ones.
        tolerance: largest difference allowed, as a share of the largest output; None
            for 1e-5 with `"float"`, 0.1 with `"int8-dynamic"`, and two codes of 127
            with `"int8-static"`.
        input_shape: shape of the input without the batch axis, to fix the lengths that
            the model leaves open; one per input, by name or in order, if there are
            several; None leaves them open, where the runtime can.

    Returns:
        The `ExportReport`: path, scheme, bytes of the file, number of samples, and the
        difference of the outputs as a share of the largest.

    Raises:
        ConfigError: if an argument cannot be used, or a package is missing:
            `ai-edge-litert`, or for ONNX `tf2onnx` and `onnxruntime`.
        DataError: if the samples do not fit the model.
        ModelError: if the model has no weights yet, or the runtime lacks an operation
            of it or cannot take its open lengths, or the file does not give what the
            model gives.
        OutputError: if the file cannot be written.

    Example:
        >>> import tempfile, kerasmem as km
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = km.export(model, Path(folder, "model.tflite"))
        >>> report.scheme, report.difference < 1e-5
        ('float', True)
    """
    scheme = checked(model, path, scheme, batch_size)
    kind = ONNX if is_onnx(path) else scheme
    model = with_named_inputs(model, samples)
    if batch_size is None and samples is not None:
        check_data(model, samples)
        batch_size = whole_batch(model, samples, sample_count(samples) or 0)
    arguments, arrays = inputs_and_samples(
        model, samples, SAMPLES, batch_size=batch_size, input_shape=input_shape
    )
    try:
        if scheme == STATIC:
            raise ModelError(
                f"The model {model.name!r} has no LiteRT file yet. Expected: a model "
                f"without {STATIC!r}. Received: scheme={scheme!r}."
            )
        job = _Job(model, kind, arrays, batch_size)
        content, outputs, expected = _with_lengths(job, arguments)
    except OSError as error:
        raise OutputError(
            f"Could not write a temporary file to make {str(path)!r} of: "
            f"{error.strerror or error}. Nothing was written."
        ) from error
    worst = difference(outputs, expected, _LEAST[scheme])
    allowed = TOLERANCES[scheme] if tolerance is None else tolerance
    if not worst <= allowed:
        raise ModelError(
            f"The file does not give what the model {model.name!r} gives, so it "
            f"was not written. Expected: a difference of at most {allowed:g} of the "
            f"largest output. Received: {worst:.3g} on {len(arrays[0])} samples. Next: "
            "a larger tolerance= (--tolerance), if that is near enough."
        )
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return ExportReport(str(path), scheme, len(content), len(arrays[0]), worst, allowed)


@dataclass(frozen=True)
class _Job:
    """A float or dynamic file to make, but for the shapes of its inputs.

    Args:
        model: the model; it is not changed.
        kind: of the file, as for `convert`.
        arrays: an array per input to compare on.
        batch_size: length of the batch axis, None for an open one.
    """

    model: Any
    kind: str
    arrays: Sequence[np.ndarray]
    batch_size: int | None


def _with_lengths(job: _Job, arguments: Sequence[Argument]) -> Conversion:
    """Return the file with open lengths, or say that they are what it fails by."""
    try:
        return _floats(job, arguments)
    except ModelError as error:
        shapes = {argument.name: argument.shape[1:] for argument in arguments}
        unknown = open_lengths(shapes)
        if not unknown or not _runs(job, arguments):
            raise
        raise ModelError(
            f"The file cannot have the open lengths of the model {job.model.name!r}: "
            "with lengths that are known it can be made. Expected: known lengths. "
            f"Received: {unknown}. Next: pass input_shape= "
            f"(--input-shape{once_per_input(shapes)}), without the batch axis."
        ) from error


def _runs(job: _Job, arguments: Sequence[Argument]) -> bool:
    """Return whether there is a file for inputs of the lengths of the samples."""
    fixed = [
        replace(argument, shape=(argument.shape[0], *array.shape[1:]))
        for argument, array in zip(arguments, job.arrays, strict=True)
    ]
    try:
        _floats(job, fixed)
    except ModelError:
        return False
    return True


def _floats(job: _Job, arguments: Sequence[Argument]) -> Conversion:
    copy = _copy(job.model)
    content = convert(copy, arguments, job.kind)
    file = Onnx(content) if job.kind == ONNX else LiteRT(content)
    outputs = outputs_of(file, arguments, job.arrays, job.batch_size)
    compute_in_float32(copy)
    with as_floats(copy):
        return content, outputs, _expected(copy, job.arrays)


def _copy(model: Any) -> Any:
    """Return a copy; the model itself if it has none and is exported as it is."""
    try:
        return clone(model)
    except ModelError:
        types = {layer.compute_dtype for layer in sublayers(model)}
        if types != {"float32"} or quantized_variables(model):
            raise
        return model


def _expected(model: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a model."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    with current().inference():
        outputs = call_flat(model, tensors)
    return [keras.ops.convert_to_numpy(output) for output in outputs]
