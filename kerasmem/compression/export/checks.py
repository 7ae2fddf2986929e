"""Whether a model can be exported as it is asked for, before anything is converted."""

from pathlib import Path
from typing import Any

import keras

from kerasmem.compression.export.convert import DYNAMIC, FLOAT
from kerasmem.compression.export.integer import is_integer
from kerasmem.compression.quantize.config import STATIC
from kerasmem.errors import ConfigError
from kerasmem.files.onnx import check_onnx
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
