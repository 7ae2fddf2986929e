"""A model as a file for another runtime, run back and compared before it is there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.litert import Argument
from kerasmem.compression.export.convert import compute_in_float32, convert
from kerasmem.compression.export.integer import integer_file, is_integer
from kerasmem.compression.export.run import in_codes, in_steps, outputs_of
from kerasmem.compression.quantize.config import STATIC
from kerasmem.compression.quantize.floats import as_floats
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.atomic import replacing
from kerasmem.files.litert import (
    LiteRT,
    arguments_of,
    call_flat,
    difference,
    flat_samples,
    random_samples,
)
from kerasmem.graph.clone import clone
from kerasmem.records import ExportReport

TOLERANCES = {"float": 1e-5, "int8-dynamic": 0.1, STATIC: 0.02}
_LEAST = {"float": 1.0, "int8-dynamic": 1e-6, STATIC: 127.0}
_SAMPLES = 4

Made = tuple[bytes, list[np.ndarray], list[np.ndarray]]
"""The file, what it gives and what it should."""


def export(
    model: Any,
    path: str | Path,
    *,
    scheme: str | None = None,
    batch_size: int | None = None,
    samples: Any = None,
    tolerance: float | None = None,
) -> ExportReport:
    """Write `model` as a LiteRT file, run back and compared, whole or not at all.

    The inputs of the file have the names of the model's, its outputs are `output_0`
    and so on. It computes in float32, also where the model computes in half precision
    or rounds its activations itself, and is compared with the model doing so too. The
    file of a model that `"int8-static"` made takes and gives int8 codes and is run by
    LiteRT's reference kernels.

    Args:
        model: a built `keras.Model`; it is not changed.
        path: where to; ends in `.tflite`.
        scheme: `"float"`, or `"int8-dynamic"` (weights of 1,024 entries and more in
            int8, activations rounded as they come), or `"int8-static"`, for a model
            that it made; None for the one that suits the weights of the model.
        batch_size: length of the batch axis, from 1; None leaves it open.
        samples: inputs to compare on, in any of the forms that `kerasmem.files.data`
            lists, of which the first 4 are taken; None for random ones.
        tolerance: largest difference allowed, as a share of the largest output; None
            for 1e-5 with `"float"`, 0.1 with `"int8-dynamic"`, and two codes of 127
            with `"int8-static"`.

    Raises:
        ConfigError: if an argument cannot be used, or `ai-edge-litert` is missing.
        DataError: if the samples do not fit the model.
        ModelError: if LiteRT lacks an operation of the model, or the file does not
            give what the model gives.
        OutputError: if the file cannot be written.
    """
    scheme = _checked(model, path, scheme, batch_size)
    arrays = None if samples is None else flat_samples(model, samples, _SAMPLES)
    arguments = arguments_of(model, batch_size, arrays)
    arrays = arrays or random_samples(arguments, _SAMPLES)
    make = _integer if scheme == STATIC else _floats
    content, outputs, expected = make(model, scheme, arguments, arrays, batch_size)
    worst = difference(outputs, expected, _LEAST[scheme])
    allowed = TOLERANCES[scheme] if tolerance is None else tolerance
    if not worst <= allowed:
        raise ModelError(
            f"The LiteRT file does not give what the model {model.name!r} gives, so it "
            f"was not written. Expected: a difference of at most {allowed:g} of the "
            f"largest output. Received: {worst:.3g} on {len(arrays[0])} samples."
        )
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return ExportReport(str(path), scheme, len(content), len(arrays[0]), worst, allowed)


def _checked(
    model: Any, path: str | Path, scheme: str | None, batch_size: int | None
) -> str:
    """Return the scheme, the one that suits the weights of `model` if it is None."""
    if Path(path).suffix != ".tflite":
        raise ConfigError(
            "A model is exported to a file that ends in .tflite. "
            f"Received: path={str(path)!r}."
        )
    if scheme is not None and scheme not in TOLERANCES:
        raise ConfigError(
            f"The scheme of an export is one of {', '.join(TOLERANCES)}. "
            f"Received: scheme={scheme!r}."
        )
    if batch_size is not None and batch_size < 1:
        raise ConfigError(
            f"batch_size is 1 or more, or None. Received: batch_size={batch_size}."
        )
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
    return scheme or ("int8-dynamic" if dtypes & {"int8", "uint8"} else "float")


def _floats(
    model: Any,
    scheme: str,
    arguments: Sequence[Argument],
    arrays: Sequence[np.ndarray],
    batch_size: int | None,
) -> Made:
    copy = clone(model)
    content = convert(copy, arguments, int8_weights=scheme == "int8-dynamic")
    outputs = outputs_of(LiteRT(content), arguments, arrays, batch_size)
    compute_in_float32(copy)
    with as_floats(copy):
        return content, outputs, _expected(copy, arrays)


def _integer(
    model: Any,
    scheme: str,
    arguments: Sequence[Argument],
    arrays: Sequence[np.ndarray],
    batch_size: int | None,
) -> Made:
    """Both in steps of the codes of the outputs."""
    del scheme
    content = integer_file(model, batch_size)
    file = LiteRT(content, kernels="reference")
    codes = outputs_of(file, arguments, in_codes(file, arguments, arrays), batch_size)
    return content, *in_steps(file, codes, _expected(model, arrays))


def _expected(model: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a model."""
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    with current().inference():
        outputs = call_flat(model, tensors)
    return [keras.ops.convert_to_numpy(output) for output in outputs]
