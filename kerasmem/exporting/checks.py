"""Whether a model can be exported as it is asked for, before anything is converted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends.litert import Argument
from kerasmem.compression.quantize.config import STATIC
from kerasmem.errors import ConfigError, DataError
from kerasmem.exporting.arguments import arguments_of
from kerasmem.exporting.convert import DYNAMIC, FLOAT
from kerasmem.exporting.integer import is_integer
from kerasmem.exporting.onnx import check_onnx
from kerasmem.graph.built import check_built

TOLERANCES = {FLOAT: 1e-5, DYNAMIC: 0.1, STATIC: 0.02}
"""The schemes, and the largest difference that each allows by itself."""

_LITERT, _ONNX = ".tflite", ".onnx"


def is_onnx(path: str | Path) -> bool:
    """Return whether an ONNX file is asked for."""
    return Path(path).suffix == _ONNX


def checked(
    model: Any, path: str | Path, scheme: str | None, batch_size: int | None
) -> str:
    """Return the scheme, the one that suits the weights of `model` if it is None."""
    check_built(model)
    if Path(path).suffix not in (_LITERT, _ONNX):
        raise ConfigError(
            "A model is exported to a file that ends in .tflite or .onnx. "
            f"Received: path={str(path)!r}."
        )
    if scheme is not None and scheme not in TOLERANCES:
        raise ConfigError(
            f"The scheme of an export is one of {', '.join(TOLERANCES)}. "
            f"Received: scheme={scheme!r}."
        )
    is_count = isinstance(batch_size, int) and batch_size >= 1
    if batch_size is not None and not is_count:
        raise ConfigError(
            f"batch_size is 1 or more, or None. Received: batch_size={batch_size!r}."
        )
    if is_onnx(path):
        return _checked_for_onnx(model, scheme)
    if (scheme or STATIC) != STATIC and is_integer(model):
        raise ConfigError(
            f"The model {model.name!r} computes with int8 codes, and so does its file. "
            f"Expected: scheme={STATIC!r} or None. Received: scheme={scheme!r}."
        )
    if scheme == STATIC and not is_integer(model):
        raise ConfigError(
            f"Only what Quantize({STATIC!r}) made is exported as {STATIC!r}. Next: "
            f"km.compress(model, km.Quantize({STATIC!r}), data=x). Received: the model "
            f"{model.name!r}."
        )
    if is_integer(model):
        return STATIC
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in model.weights}
    return scheme or (DYNAMIC if dtypes & {"int8", "uint8"} else FLOAT)


def check_lengths(
    model: Any, arguments: Sequence[Argument], arrays: Sequence[np.ndarray]
) -> None:
    """Raise unless samples have the lengths that the file shall have.

    Args:
        model: the model, which may leave lengths open that the file has not.
        arguments: the inputs of the file.
        arrays: an array per input.

    Raises:
        ConfigError: if a file of integers is to have other lengths than its model.
        DataError: if a sample has another length.
    """
    for argument, own in zip(arguments, arguments_of(model, None, arrays), strict=True):
        if is_integer(model) and argument.shape[1:] != own.shape[1:]:
            raise ConfigError(
                "The lengths of an int8-static file are those of its model. Received: "
                f"{argument.shape[1:]} for {own.shape[1:]} of input "
                f"{argument.name!r}. Next: fix them before km.compress."
            )
    for argument, array in zip(arguments, arrays, strict=True):
        lengths = zip(argument.shape[1:], array.shape[1:], strict=True)
        if any(known not in (None, length) for known, length in lengths):
            raise DataError(
                f"The samples do not have the lengths of the file. Expected: "
                f"{argument.shape[1:]} for input {argument.name!r}. Received: "
                f"{array.shape[1:]}. Next: samples of these lengths, or none."
            )


def _checked_for_onnx(model: Any, scheme: str | None) -> str:
    if (scheme or FLOAT) != FLOAT:
        raise ConfigError(
            f"An ONNX file has float weights. Expected: scheme={FLOAT!r} or None. "
            f"Received: scheme={scheme!r}. Next: for int8, a file that ends in "
            f"{_LITERT}."
        )
    if is_integer(model):
        raise ConfigError(
            f"The model {model.name!r} computes with int8 codes, and an ONNX file with "
            f"floats. Next: a file that ends in {_LITERT}, or export a model without "
            f"{STATIC!r}."
        )
    check_onnx()
    return FLOAT
