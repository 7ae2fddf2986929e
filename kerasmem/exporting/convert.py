"""A model as the bytes of a file, here or in a process that runs TensorFlow."""

import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

from kerasmem.backends import current, litert, onnx
from kerasmem.backends.litert import Argument
from kerasmem.compression.quantize.floats import as_floats
from kerasmem.exporting.arguments import call_flat
from kerasmem.graph.layers import sublayers
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.processes.transfer import receive, send

_HALF = ("float16", "bfloat16")


FLOAT, DYNAMIC, ONNX = "float", "int8-dynamic", "onnx"

_CONVERTERS = {
    FLOAT: partial(litert.converted, int8_weights=False),
    DYNAMIC: partial(litert.converted, int8_weights=True),
    ONNX: onnx.converted,
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
    if current().name == "tensorflow":
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
        run_in_child(task, job, backend="tensorflow", environment=ON_THE_CPU)
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
