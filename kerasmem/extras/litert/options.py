"""Checks the arguments of `export` before any conversion."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.converting import Argument
from kerasmem.checks import OneOf, Whole, invalid
from kerasmem.compression.quantize.activations import flat_batches
from kerasmem.compression.quantize.aware.learned import is_aware, is_static, learned
from kerasmem.compression.quantize.config import DYNAMIC, STATIC, Calibration
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError, DataError
from kerasmem.extras.litert.arguments import arguments_of, random_samples
from kerasmem.extras.litert.file_loss import Judged
from kerasmem.extras.litert.interpreters import check_onnx, litert_module
from kerasmem.extras.litert.litert_writer import quantizer_module
from kerasmem.files.data import is_array_data
from kerasmem.files.data.check import flat_samples
from kerasmem.files.data.forms import labeled_batches
from kerasmem.graph.layers import check_built
from kerasmem.types import Dataset, Model, Tensor

FLOAT, INT4 = "float", "int4"
JUDGED = 512
"""Maximum number of samples for comparing a file with its model."""

SCHEMES = (FLOAT, DYNAMIC, STATIC, INT4)

_LITERT, _ONNX = ".tflite", ".onnx"


def is_onnx(path: str | Path) -> bool:
    """Return whether the path is an ONNX file."""
    return Path(path).suffix == _ONNX


def checked_scheme(model: Model, path: str | Path, scheme: str | None) -> str:
    """Return the scheme. `None` selects the scheme of the model's weights.

    Raises:
        ConfigError: If the scheme or the path is invalid, or a package is missing.
        ModelError: If the model is not built.
    """
    check_built(model)
    if not isinstance(path, str | Path) or Path(path).suffix not in (_LITERT, _ONNX):
        valid = "a path that ends in .tflite or .onnx"
        raise invalid("export", "path", str(path), valid)
    OneOf((None, *SCHEMES)).check("export", "scheme", scheme)
    scheme = scheme or own_scheme(model, is_onnx(path))
    if is_aware(model) and scheme != FLOAT:
        raise ConfigError(
            f"The model {model.name!r} is in quantization-aware training. Received: "
            f"scheme={scheme!r}. Next: export the result of km.compress(model, "
            "quantize), with the Quantize used for training."
        )
    if not is_onnx(path):
        litert_module("interpreter")
        if scheme != FLOAT:
            quantizer_module("quantizer")
        return scheme
    if scheme == INT4:
        raise ConfigError(
            f"ONNX files have int8 or float weights. Expected: one of {FLOAT!r}, "
            f"{DYNAMIC!r}, {STATIC!r} or None. Received: scheme={scheme!r}. Next: for "
            f"int4, use a file that ends in {_LITERT}."
        )
    check_onnx()
    return scheme


def own_scheme(model: Model, onnx: bool = False) -> str:  # noqa: FBT001, FBT002
    """Return the scheme of a model's weights and activations."""
    variables = quantized_variables(model)
    # The products of subclassed models have fixed input scales, and no quantizers.
    if is_static(model) or any(v.activation_scale is not None for v in variables):
        return STATIC
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in model.weights}
    if "int4" in {variable.coding.dtype for variable in variables}:
        return FLOAT if onnx else INT4
    return DYNAMIC if dtypes & {"int8", "uint8"} else FLOAT


def check_calibrates(model: Model, scheme: str, samples: Dataset) -> None:
    """Raise an error if activation ranges are neither known nor measurable."""
    if scheme == STATIC and samples is None and not learned(model).ranges:
        raise ConfigError(
            f"The scheme {STATIC!r} needs samples to measure activation ranges. "
            "Expected: samples=x (--data), or a model with ranges, such as a model "
            f"compressed with km.Quantize({STATIC!r}). Received: samples=None."
        )


def check_batch_size(batch_size: Any) -> None:
    """Raise an error unless the batch size is an int from 1 or None."""
    if batch_size is not None:
        Whole(1).check("export", "batch_size", batch_size)


def inputs_and_samples(
    model: Model,
    samples: Dataset,
    count: int,
    *,
    batch_size: int | None = None,
    input_shape: Any | None = None,
) -> tuple[list[Argument], list[np.ndarray]]:
    """Return the inputs of a file, and samples for each input.

    Samples are random if None are passed. There is at least one batch.

    Raises:
        ConfigError: If `arguments_of` rejects the model or the shapes.
        DataError: If a sample has other lengths than the file.
    """
    count = max(count, batch_size or 1)
    arrays = None if samples is None else _samples(model, samples, count)
    arguments = arguments_of(model, batch_size, arrays, input_shape)
    arrays = arrays or random_samples(arguments, count)
    check_lengths(arguments, arrays)
    return arguments, list(arrays)


def _samples(model: Model, data: Dataset, count: int) -> list[np.ndarray]:
    if is_array_data(data):
        return flat_samples(model, data, count)
    batches = flat_batches(model, data, Calibration(samples=count))
    return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]


def judged_samples(
    model: Model,
    arguments: Sequence[Argument],
    arrays: Sequence[np.ndarray],
    validation_data: Dataset,
) -> Judged:
    """Return the samples for comparing a file with its model.

    Without validation data, the calibration samples are used.

    Raises:
        DataError: If the samples do not fit the model or the file.
    """
    if validation_data is None:
        return Judged(arrays)
    # Read only once, because each pass of a dataset may have another order.
    parts = []
    for x, y, _ in labeled_batches(validation_data, JUDGED):
        arrays = flat_samples(model, (x,), JUDGED)
        parts.append((arrays, None if y is None else _labels(model, y)))
        if sum(len(arrays[0]) for arrays, _ in parts) >= JUDGED:
            break
    if not parts:
        raise DataError("Expected samples in validation_data. Received: no sample.")
    by_input = zip(*(arrays for arrays, _ in parts), strict=True)
    inputs = [np.concatenate(arrays)[:JUDGED] for arrays in by_input]
    check_lengths(arguments, inputs)
    labels = [each for _, each in parts if each is not None]
    if len(labels) < len(parts):
        return Judged(inputs)
    labels_by_output = (
        None if each[0] is None else np.concatenate(each)[:JUDGED]
        for each in zip(*labels, strict=True)
    )
    return Judged(inputs, list(labels_by_output))


def _labels(model: Model, y: Tensor) -> list[Any]:
    if not isinstance(y, dict):
        return [np.asarray(array) for array in keras.tree.flatten(y)]
    output = getattr(model, "output", None)
    names = getattr(model, "output_names", None) or sorted(y)
    if isinstance(output, dict):
        names = sorted(output)
    return [None if y.get(name) is None else np.asarray(y[name]) for name in names]


def check_lengths(arguments: Sequence[Argument], arrays: Sequence[np.ndarray]) -> None:
    """Raise `DataError` unless the samples have the input lengths of the file."""
    for argument, array in zip(arguments, arrays, strict=True):
        lengths = zip(argument.shape[1:], array.shape[1:], strict=True)
        if any(
            wanted_length not in (None, length) for wanted_length, length in lengths
        ):
            raise DataError(
                f"The lengths of the samples do not fit the file. Expected: "
                f"{argument.shape[1:]} for input {argument.name!r}. Received: "
                f"{array.shape[1:]}. Next: pass samples of this shape, or none."
            )
