"""The compared forms of a model, and how to create and run each."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from kerasmem.compression.measure import size_of
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.config import DYNAMIC, STATIC
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError
from kerasmem.extras.litert import export, resident_child
from kerasmem.extras.litert.arguments import arguments_of, in_structure
from kerasmem.extras.litert.interpreters import LiteRT, constant_bytes
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import nbytes
from kerasmem.processes import ON_THE_CPU, run_in_child, run_script
from kerasmem.processes.host import KernelPeak, kernel_peak_works, resident_bytes
from kerasmem.processes.transfer import receive, send
from kerasmem.types import Model

Arrays = Sequence[np.ndarray]
"""A batch, one array per input."""


@dataclass(frozen=True)
class Setup:
    """Inputs of the comparison."""

    model: Any
    data: Any
    batch: Arrays
    batch_sizes: tuple[int, ...]
    threads: int
    files: Mapping[str, Any]


_PASSES = 3


class Resident(NamedTuple):
    """Peak resident memory in bytes: total, and growth since the start.

    None if the system does not report resident memory.
    """

    process_bytes: int | None
    peak_bytes: int | None


class InKeras:
    """A model in Keras."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.file_bytes = size_of(model).file_bytes
        self.weight_bytes = sum(map(nbytes, model.weights))

    def run(self, batch: Arrays) -> Callable[[], Any]:
        """Return a function that predicts a batch."""
        x = in_structure(self._model, batch)
        return lambda: self._model.predict_on_batch(x)

    def outputs(self, batch: Arrays) -> Arrays:
        """Return the predictions of the model."""
        return keras.tree.flatten(self.run(batch)())

    def resident(self, batch: Arrays) -> Resident:
        """Measure the memory of a process with Keras."""
        return resident_in_keras(self._model, batch)


class InLiteRT:
    """LiteRT files of one model by batch size, run by LiteRT."""

    def __init__(self, files: Mapping[int | None, bytes], setup: Setup) -> None:
        self._files, self._threads = files, setup.threads
        self._names = [a.name for a in arguments_of(setup.model, None, setup.batch)]
        self._any = LiteRT(next(iter(files.values())))
        self.file_bytes = max(map(len, files.values()))
        self.weight_bytes = max(map(constant_bytes, files.values()))

    def run(self, batch: Arrays) -> Callable[[], Any]:
        """Return a function that runs the file on the batch."""
        file, arrays = LiteRT(self._file(batch), threads=self._threads), self._in(batch)
        return lambda: file(arrays)

    def outputs(self, batch: Arrays) -> Arrays:
        """Return the outputs of the file, dequantized."""
        return self._any.decoded(self.run(batch)())

    def resident(self, batch: Arrays) -> Resident:
        """Measure the memory of a process without Keras."""
        return resident_in_litert(self._file(batch), self._in(batch), self._threads)

    def _file(self, batch: Arrays) -> bytes:
        return self._files[None if None in self._files else len(batch[0])]

    def _in(self, batch: Arrays) -> dict[str, np.ndarray]:
        return self._any.encoded(dict(zip(self._names, batch, strict=True)))


Runnable = InKeras | InLiteRT
"""A form that was created."""


@dataclass(frozen=True)
class OperationForm:
    """One form of a model."""

    name: str
    how: str
    make: Callable[[Setup], Runnable]
    needs_keras: bool = False


def _as_it_is(setup: Setup) -> Runnable:
    return InKeras(setup.model)


def _int8_weights(setup: Setup) -> Runnable:
    model, _ = apply_technique(Quantize("int8"), setup.model)
    return InKeras(model)


def _file(scheme: str) -> Callable[[Setup], Runnable]:
    return lambda setup: _exported(setup.model, setup, scheme)


def _static(setup: Setup) -> Runnable:
    if setup.data is None:
        raise ConfigError(
            "The form needs samples for calibration. Next: pass data= (--data)."
        )
    return _exported(setup.model, setup, STATIC)


def _exported(model: Model, setup: Setup, scheme: str) -> Runnable:
    has_loop = any(isinstance(layer, keras.layers.RNN) for layer in sublayers(model))
    sizes = setup.batch_sizes if has_loop else (None,)
    files = {size: _content(model, setup, scheme, size) for size in sizes}
    return InLiteRT(files, setup)


def _content(model: Model, setup: Setup, scheme: str, batch_size: int | None) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        path = Path(folder, "model.tflite")
        samples = setup.data
        if samples is None:
            samples = in_structure(model, setup.batch)
        export(
            model,
            path,
            scheme=scheme,
            batch_size=batch_size,
            samples=samples,
            **setup.files,
        )
        return path.read_bytes()


_FLOAT_HOW = 'km.export(model, "m.tflite")'
_DYNAMIC_HOW = f'km.export(model, "m.tflite", scheme="{DYNAMIC}")'
_STATIC_HOW = f'km.export(model, "m.tflite", scheme="{STATIC}", samples=x)'

FORMS = (
    OperationForm("Keras, as it is", "model", _as_it_is, needs_keras=True),
    OperationForm(
        "Keras, int8 weights",
        'km.compress(model, km.Quantize("int8")).model',
        _int8_weights,
        needs_keras=True,
    ),
    OperationForm("LiteRT, float", _FLOAT_HOW, _file("float")),
    OperationForm(f"LiteRT, {DYNAMIC}", _DYNAMIC_HOW, _file(DYNAMIC)),
    OperationForm(f"LiteRT, {STATIC}", _STATIC_HOW, _static),
)


def resident_in_keras(model: Model, arrays: Sequence[np.ndarray]) -> Resident:
    """Measure the resident memory of a Keras process while `model` predicts a batch.

    The process uses the current backend. It first runs a model with one weight, so that
    the backend's own start-up memory does not count.
    """
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        job = send(model, Path(folder, "model.keras"))
        job["inputs"] = str(_stored(folder, arrays))
        task, backend = f"{__name__}:predict", keras.backend.backend()
        answer = run_in_child(
            task,
            job,
            backend=backend,
            environment=ON_THE_CPU,
            doing=f"Measuring {model.name!r} in Keras",
        )
    return _resident(answer)


def resident_in_litert(
    content: bytes, arrays: Mapping[str, np.ndarray], threads: int
) -> Resident:
    """Measure the resident memory of a LiteRT file in a process without Keras."""
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        file = Path(folder, "model.tflite")
        file.write_bytes(content)
        inputs = _stored(folder, list(arrays.values()))
        names = (str(file), str(inputs), str(threads), *arrays)
        script = Path(resident_child.__file__)
        answer = run_script(script, *names, doing="Measuring the file in LiteRT")
    return _resident(json.loads(answer))


def predict(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure resident bytes before loading a model and at the peak, in the child.

    `job` contains the result of `send` and `inputs`, the path of the input arrays.
    """
    if not kernel_peak_works():
        return {"before": None, "peak": None}
    _warm_up()
    with np.load(job["inputs"]) as file:
        arrays = [file[f"arr_{number}"] for number in range(len(file.files))]
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
    path = Path(folder, "inputs.npz")
    np.savez(path, *arrays)
    return path


def _resident(readings: Mapping[str, int | None]) -> Resident:
    before, peak = readings["before"], readings["peak"]
    beyond = None if before is None or peak is None else max(peak - before, 0)
    return Resident(peak, beyond)
