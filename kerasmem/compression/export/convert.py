"""A model as the bytes of a LiteRT file, here or in a process that runs TensorFlow."""

import importlib
import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.backends.litert import Argument, converted
from kerasmem.compression.quantize.floats import as_floats
from kerasmem.errors import ModelError
from kerasmem.files.litert import call_flat
from kerasmem.files.save import save_stored
from kerasmem.graph.clone import live_objects
from kerasmem.graph.layers import sublayers
from kerasmem.memory.child import ON_THE_CPU, run_in_child

_HALF = ("float16", "bfloat16")


def convert(model: Any, arguments: Sequence[Argument], *, int8_weights: bool) -> bytes:
    """Return `model` as a LiteRT file that computes in float32.

    Args:
        model: a built `keras.Model` of our own.
        arguments: the inputs of the file.
        int8_weights: store the weights as int8 and round activations as they come.

    Raises:
        ModelError: if LiteRT lacks an operation of the model, or the model cannot go
            to the process that runs TensorFlow.
    """
    if current().name == "tensorflow":
        compute_in_float32(model)
        with as_floats(model):
            return converted(
                lambda *tensors: call_flat(model, tensors),
                model,
                arguments,
                int8_weights=int8_weights,
            )
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        saved, target = Path(folder, "model.keras"), Path(folder, "model.tflite")
        save_stored(model, saved)
        job = {
            "model": str(saved),
            "target": str(target),
            "modules": _modules(model),
            "arguments": [astuple(argument) for argument in arguments],
            "int8_weights": int8_weights,
        }
        task = f"{__name__}:convert_file"
        run_in_child(task, job, backend="tensorflow", environment=ON_THE_CPU)
        return target.read_bytes()


def convert_file(job: dict[str, Any]) -> dict[str, Any]:
    """Convert a saved model; the task of the process that runs TensorFlow.

    Args:
        job: `model` and `target`, paths; `modules` to import for the model's own
            parts; `arguments` and `int8_weights` as for `convert`.
    """
    objects: dict[str, Any] = {}
    for name in job["modules"]:
        objects |= vars(importlib.import_module(name))
    # The file was made a moment ago, of a live model of the parent.
    model = keras.models.load_model(
        job["model"], custom_objects=objects, compile=False, safe_mode=False
    )
    arguments = [
        Argument(name, tuple(shape), dtype) for name, shape, dtype in job["arguments"]
    ]
    content = convert(model, arguments, int8_weights=job["int8_weights"])
    Path(job["target"]).write_bytes(content)
    return {}


def compute_in_float32(model: Any) -> None:
    """Make every layer compute in float32, in place: LiteRT knows no half precision."""
    for layer in sublayers(model):
        if layer.compute_dtype in _HALF:
            layer.dtype_policy = "float32"


def _modules(model: Any) -> list[str]:
    modules = sorted({item.__module__ for item in live_objects(model).values()})
    if "__main__" in modules:
        raise ModelError(
            f"The model {model.name!r} has parts that are defined in the running "
            "script, and TensorFlow's converter runs in another process. Expected: "
            "parts from a module. Next: move them to a module."
        )
    return modules
