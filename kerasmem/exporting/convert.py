"""A model as the bytes of a file, here or in a process that runs TensorFlow."""

import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.converting import Argument, to_litert, to_onnx
from kerasmem.checks import OneOf, Whole, invalid
from kerasmem.compression.quantize.aware.learned import is_static
from kerasmem.compression.quantize.config import STATIC
from kerasmem.compression.quantize.owners import as_floats
from kerasmem.errors import ConfigError, DataError
from kerasmem.exporting.arguments import arguments_of, call_flat, random_samples
from kerasmem.exporting.interpreters import check_onnx
from kerasmem.files.data.check import flat_samples
from kerasmem.graph.layers import check_built, sublayers
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.processes.transfer import receive, send

_HALF = ("float16", "bfloat16")


FLOAT, DYNAMIC, ONNX = "float", "int8-dynamic", "onnx"

_CONVERTERS = {
    FLOAT: partial(to_litert, int8_weights=False),
    DYNAMIC: partial(to_litert, int8_weights=True),
    ONNX: to_onnx,
}


def convert(model: Any, arguments: Sequence[Argument], kind: str) -> bytes:
    """Return `model` as a file that computes in float32.

    Args:
        model: a built `keras.Model` of our own.
        arguments: the inputs of the file.
        kind: of the file: `"float"` or `"int8-dynamic"` for LiteRT, the latter with
            int8 weights and activations rounded as they come, or `"onnx"`.

    Raises:
        ModelError: if the runtime lacks an operation of the model, or the model cannot
            go to the process that runs TensorFlow.
    """
    if current().converts_models:
        compute_in_float32(model)
        with as_floats(model):
            return _CONVERTERS[kind](
                lambda *tensors: call_flat(model, tensors), model, arguments
            )
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        target = Path(folder, "model.file")
        job = {
            **send(model, Path(folder, "model.keras")),
            "target": str(target),
            "arguments": [astuple(argument) for argument in arguments],
            "kind": kind,
        }
        task = f"{__name__}:convert_file"
        run_in_child(
            task,
            job,
            backend="tensorflow",
            environment=ON_THE_CPU,
            doing=f"Converting {model.name!r}",
        )
        return target.read_bytes()


def convert_file(job: dict[str, Any]) -> dict[str, Any]:
    """Convert a saved model; the task of the process that runs TensorFlow.

    Args:
        job: what `send` returns; `target`, a path; `arguments` and `kind` as for
            `convert`.
    """
    arguments = [
        Argument(name, tuple(shape), dtype) for name, shape, dtype in job["arguments"]
    ]
    content = convert(receive(job), arguments, job["kind"])
    Path(job["target"]).write_bytes(content)
    return {}


def compute_in_float32(model: Any) -> None:
    """Make every layer compute in float32, in place: a file has no half precision."""
    for layer in sublayers(model):
        if layer.compute_dtype in _HALF:
            layer.dtype_policy = "float32"


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
        valid = "a file that ends in .tflite or .onnx"
        raise invalid("export", "path", str(path), valid)
    OneOf((None, *TOLERANCES)).check("export", "scheme", scheme)
    if batch_size is not None:
        Whole(1).check("export", "batch_size", batch_size)
    if is_onnx(path):
        return _checked_for_onnx(model, scheme)
    if (scheme or STATIC) != STATIC and is_static(model):
        raise ConfigError(
            f"The model {model.name!r} rounds its activations, and so does its file. "
            f"Expected: scheme={STATIC!r} or None. Received: scheme={scheme!r}."
        )
    if scheme == STATIC and not is_static(model):
        raise ConfigError(
            f"Only what Quantize({STATIC!r}) made is exported as {STATIC!r}. Next: "
            f"km.compress(model, km.Quantize({STATIC!r}), data=x). Received: the model "
            f"{model.name!r}."
        )
    if is_static(model):
        return STATIC
    dtypes = {keras.backend.standardize_dtype(v.dtype) for v in model.weights}
    return scheme or (DYNAMIC if dtypes & {"int8", "uint8"} else FLOAT)


def inputs_and_samples(
    model: Any,
    samples: Any,
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
        ConfigError: as `arguments_of`, and if a file of integers is to have other
            lengths than its model.
        DataError: if a sample has another length than the file.
    """
    count = max(count, batch_size or 1)
    arrays = None if samples is None else flat_samples(model, samples, count)
    arguments = arguments_of(model, batch_size, arrays, input_shape)
    arrays = arrays or random_samples(arguments, count)
    _check_lengths(model, arguments, arrays)
    return arguments, list(arrays)


def _check_lengths(
    model: Any, arguments: Sequence[Argument], arrays: Sequence[np.ndarray]
) -> None:
    """Raise unless samples have the lengths that the file shall have."""
    for argument, own in zip(arguments, arguments_of(model, None, arrays), strict=True):
        if is_static(model) and argument.shape[1:] != own.shape[1:]:
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
    if is_static(model):
        raise ConfigError(
            f"The model {model.name!r} rounds its activations, and an ONNX file does "
            f"not. Next: a file that ends in {_LITERT}, or export a model without "
            f"{STATIC!r}."
        )
    check_onnx()
    return FLOAT
