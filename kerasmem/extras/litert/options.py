"""What `export` is asked for, checked before anything is made."""

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
"""Most samples to judge a file on."""

SCHEMES = (FLOAT, DYNAMIC, STATIC, INT4)

_LITERT, _ONNX = ".tflite", ".onnx"


def is_onnx(path: str | Path) -> bool:
    """Return whether an ONNX file is asked for."""
    return Path(path).suffix == _ONNX


def checked_scheme(model: Model, path: str | Path, scheme: str | None) -> str:
    """Return the scheme, the one that suits the weights of `model` if it is None.

    Raises:
        ConfigError: if the scheme, the path or a package is missing or unknown.
        ModelError: if the model is not built.
    """
    check_built(model)
    if not isinstance(path, str | Path) or Path(path).suffix not in (_LITERT, _ONNX):
        valid = "a file that ends in .tflite or .onnx"
        raise invalid("export", "path", str(path), valid)
    OneOf((None, *SCHEMES)).check("export", "scheme", scheme)
    scheme = scheme or _own_scheme(model, is_onnx(path))
    if is_aware(model) and scheme != FLOAT:
        raise ConfigError(
            f"The model {model.name!r} is in quantization-aware training. Next: export "
            "what km.compress(model, quantize) makes of it, with the Quantize that it "
            f"was trained for. Received: scheme={scheme!r}."
        )
    if not is_onnx(path):
        litert_module("interpreter")
        if scheme != FLOAT:
            quantizer_module("quantizer")
        return scheme
    if scheme == INT4:
        raise ConfigError(
            f"An ONNX file has int8 or float weights. Expected: one of {FLOAT!r}, "
            f"{DYNAMIC!r}, {STATIC!r} or None. Received: scheme={scheme!r}. Next: for "
            f"int4, a file that ends in {_LITERT}."
        )
    check_onnx()
    return scheme


def _own_scheme(model: Model, onnx: bool) -> str:  # noqa: FBT001
    if is_static(model):
        return STATIC
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in model.weights}
    if "int4" in {variable.coding.dtype for variable in quantized_variables(model)}:
        return FLOAT if onnx else INT4
    return DYNAMIC if dtypes & {"int8", "uint8"} else FLOAT


def check_calibrates(model: Model, scheme: str, samples: Dataset) -> None:
    """Raise if ranges of activations are neither in the model nor to be measured."""
    if scheme == STATIC and samples is None and not learned(model).ranges:
        raise ConfigError(
            f"The scheme {STATIC!r} takes the ranges of activations from samples. "
            "Expected: samples=x (--data), or a model with its own ranges, such as "
            f"km.Quantize({STATIC!r}) makes. Received: samples=None."
        )


def check_batch_size(batch_size: Any) -> None:
    """Raise unless the length of the batch axis is a whole number or None."""
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
    """Return the inputs of a file, and samples for each of them.

    Args:
        model: a built model that names its inputs, or samples that do.
        samples: in any of the forms that `kerasmem.files.data` lists, None for random
            ones.
        count: how many of them, from 1; at least a batch.
        batch_size: see `arguments_of`.
        input_shape: likewise.

    Raises:
        ConfigError: as `arguments_of`.
        DataError: if a sample has another length than the file.
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
    """Return the samples that a file is judged on.

    Args:
        model: the model.
        arguments: the inputs of the file.
        arrays: samples to calibrate on, which serve if there are no others.
        validation_data: samples, best with labels; None for none.

    Raises:
        DataError: if they do not fit the model or the file.
    """
    if validation_data is None:
        return Judged(arrays)
    # In one pass: a dataset may be shuffled anew in each.
    parts = []
    for x, y, _ in labeled_batches(validation_data, JUDGED):
        arrays = flat_samples(model, (x,), JUDGED)
        parts.append((arrays, None if y is None else _labels(model, y)))
        if sum(len(arrays[0]) for arrays, _ in parts) >= JUDGED:
            break
    if not parts:
        raise DataError("A file is judged on samples. Received: no validation_data.")
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
    """Raise a `DataError` unless samples have the lengths that the file shall have."""
    for argument, array in zip(arguments, arrays, strict=True):
        lengths = zip(argument.shape[1:], array.shape[1:], strict=True)
        if any(
            wanted_length not in (None, length) for wanted_length, length in lengths
        ):
            raise DataError(
                f"The samples do not have the lengths of the file. Expected: "
                f"{argument.shape[1:]} for input {argument.name!r}. Received: "
                f"{array.shape[1:]}. Next: samples of these lengths, or none."
            )
