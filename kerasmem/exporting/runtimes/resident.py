"""Resident memory of a model that runs in a process of its own, on the CPU."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from kerasmem.exporting.arguments import in_structure
from kerasmem.exporting.runtimes import alone
from kerasmem.processes import ON_THE_CPU, run_in_child, run_script
from kerasmem.processes.host import KernelPeak, kernel_peak_works, resident_bytes
from kerasmem.processes.transfer import receive, send

_PASSES = 3


class Resident(NamedTuple):
    """Resident bytes: the most of the process, and that beyond what it began with.

    None where the system does not tell.
    """

    process_bytes: int | None
    peak_bytes: int | None


def resident_in_keras(model: Any, arrays: Sequence[np.ndarray]) -> Resident:
    """Return what a process with Keras has resident while `model` predicts a batch.

    It runs the backend that runs here. The model that it begins with has one weight:
    what a backend takes for its first pass is not the model's.

    Args:
        model: a built model.
        arrays: a batch, an array per input.

    Raises:
        ModelError: if a part of the model is defined in the running script.
        ChildDiedError: if the process died.
    """
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        job = send(model, Path(folder, "model.keras"))
        job["inputs"] = str(_stored(folder, arrays))
        task, backend = f"{__name__}:predict", keras.backend.backend()
        found = run_in_child(task, job, backend=backend, environment=ON_THE_CPU)
    return _resident(found)


def resident_in_litert(
    content: bytes, arrays: Mapping[str, np.ndarray], threads: int
) -> Resident:
    """Return what a process without Keras has resident while it runs a LiteRT file.

    Args:
        content: the bytes of the file.
        arrays: a batch, an array for each name of an input.
        threads: of LiteRT.

    Raises:
        ChildDiedError: if the process died.
    """
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        file = Path(folder, "model.tflite")
        file.write_bytes(content)
        inputs = _stored(folder, list(arrays.values()))
        names = (str(file), str(inputs), str(threads), *arrays)
        found = run_script(Path(alone.__file__), *names)
    return _resident(json.loads(found))


def predict(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resident bytes before a model and at their peak; runs in the child.

    Args:
        job: what `send` returns, and `inputs`, the path of an array per input.
    """
    if not kernel_peak_works():
        return {"before": None, "peak": None}
    _warm_up()
    with np.load(job["inputs"]) as stored:
        arrays = [stored[f"arr_{number}"] for number in range(len(stored.files))]
    before = resident_bytes()
    model = receive(job)
    batch, peak = in_structure(model, arrays), KernelPeak()
    peak.reset()
    for _ in range(_PASSES):
        model.predict_on_batch(batch)
    return {"before": before, "peak": peak.read().peak_bytes}


def _warm_up() -> None:
    inputs = keras.Input((1,))
    small = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    small.predict_on_batch(np.zeros((1, 1), "float32"))


def _stored(folder: str, arrays: Sequence[np.ndarray]) -> Path:
    """Write arrays by their numbers."""
    path = Path(folder, "inputs.npz")
    np.savez(path, *arrays)
    return path


def _resident(found: Mapping[str, int | None]) -> Resident:
    before, peak = found["before"], found["peak"]
    beyond = None if before is None or peak is None else max(peak - before, 0)
    return Resident(peak, beyond)
