"""Converts a model to the bytes of a file, in a TensorFlow process if needed."""

import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from kerasmem.backends import current
from kerasmem.backends.converting import Argument, to_litert, to_onnx
from kerasmem.compression.quantize.owners import as_floats, quantized_variables
from kerasmem.errors import ModelError
from kerasmem.extras.litert.arguments import call_flat
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import sublayers
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.processes.transfer import receive, send
from kerasmem.types import Model

_HALF = ("float16", "bfloat16")


LITERT, ONNX = "litert", "onnx"

_CONVERTERS = {LITERT: to_litert, ONNX: to_onnx}


def convert(model: Model, arguments: Sequence[Argument], kind: str) -> bytes:
    """Convert a model to a float file.

    The model may be modified.

    Raises:
        ModelError: If the runtime does not support an operation of the model, or the
            model cannot be sent to the TensorFlow process.
    """
    if current().converts_models:
        _compute_in_float32(model)
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
    """Convert a saved model. Runs in the TensorFlow process.

    `job` contains the result of `send`, `target` (path), `arguments` and `kind`.
    """
    arguments = [
        Argument(name, tuple(shape), dtype) for name, shape, dtype in job["arguments"]
    ]
    content = convert(receive(job), arguments, job["kind"])
    Path(job["target"]).write_bytes(content)
    return {}


def _compute_in_float32(model: Model) -> None:
    for layer in sublayers(model):
        if layer.compute_dtype in _HALF:
            layer.dtype_policy = "float32"


def float32_copy(model: Model) -> Any:
    """Return a copy that computes in float32, or the model if it cannot be copied.

    Raises:
        ModelError: If the model cannot be copied and conversion would modify it.
    """
    try:
        copy = clone(model)
    except ModelError:
        types = {layer.compute_dtype for layer in sublayers(model)}
        if types != {"float32"} or quantized_variables(model):
            raise
        return model
    _compute_in_float32(copy)
    return copy
