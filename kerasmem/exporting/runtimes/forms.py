"""The forms of a model that are compared: how each is made, and how it is run."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np

from kerasmem.compression.measure import file_bytes
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.config import DYNAMIC, STATIC
from kerasmem.compression.technique import Context
from kerasmem.errors import ConfigError
from kerasmem.exporting import export
from kerasmem.exporting.arguments import arguments_of, in_structure
from kerasmem.exporting.litert import LiteRT, constant_bytes
from kerasmem.exporting.run import in_codes
from kerasmem.exporting.runtimes.resident import (
    Resident,
    resident_in_keras,
    resident_in_litert,
)
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import nbytes

Arrays = Sequence[np.ndarray]
"""A batch, an array per input."""


@dataclass(frozen=True)
class Given:
    """What a form is made of.

    Args:
        model: the model as it is; it is not changed.
        data: samples to calibrate on and to compare files on; None for none.
        batch: the largest batch that is measured.
        batch_sizes: all that are.
        threads: of LiteRT.
        files: more arguments of `export`.
    """

    model: Any
    data: Any
    batch: Arrays
    batch_sizes: tuple[int, ...]
    threads: int
    files: Mapping[str, Any]


class Runnable(Protocol):
    """A form that was made."""

    @property
    def file_bytes(self) -> int:
        """Size of its file."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights in RAM."""
        ...

    def run(self, batch: Arrays) -> Callable[[], Any]:
        """Return a call that runs a batch."""
        ...

    def outputs(self, batch: Arrays) -> Arrays:
        """Return what a batch gives, as floats."""
        ...

    def resident(self, batch: Arrays) -> Resident:
        """Return the memory of a process of its own."""
        ...


@dataclass(frozen=True)
class Form:
    """One form, by its name.

    Args:
        name: what tables call it.
        how: what to write to get it.
        make: makes it, or raises what is the reason that there is none.
        needs_keras: whether it runs only in a process that has Keras.
    """

    name: str
    how: str
    make: Callable[[Given], Runnable]
    needs_keras: bool = False


class InKeras:
    """A model, run by Keras."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.file_bytes = file_bytes(model)
        self.weight_bytes = sum(map(nbytes, model.weights))

    def run(self, batch: Arrays) -> Callable[[], Any]:
        """Return a call that predicts a batch."""
        x = in_structure(self._model, batch)
        return lambda: self._model.predict_on_batch(x)

    def outputs(self, batch: Arrays) -> Arrays:
        """Return what the model predicts."""
        return keras.tree.flatten(self.run(batch)())

    def resident(self, batch: Arrays) -> Resident:
        """Return the memory of a process that has Keras."""
        return resident_in_keras(self._model, batch)


class InLiteRT:
    """LiteRT files of one model, by the length of their batch axis, run by LiteRT."""

    def __init__(self, files: Mapping[int | None, bytes], given: Given) -> None:
        self._files, self._threads = files, given.threads
        self._arguments = arguments_of(given.model, None, given.batch)
        self._any = LiteRT(next(iter(files.values())))
        self.file_bytes = max(map(len, files.values()))
        self.weight_bytes = max(map(constant_bytes, files.values()))

    def run(self, batch: Arrays) -> Callable[[], Any]:
        """Return a call that runs the file, made ready for such a batch."""
        file, arrays = LiteRT(self._file(batch), threads=self._threads), self._in(batch)
        return lambda: file(arrays)

    def outputs(self, batch: Arrays) -> Arrays:
        """Return what the file gives; codes as the floats that they stand for."""
        return [
            _as_floats(output, self._any.outputs[f"output_{number}"])
            for number, output in enumerate(self.run(batch)())
        ]

    def resident(self, batch: Arrays) -> Resident:
        """Return the memory of a process that has no Keras."""
        return resident_in_litert(self._file(batch), self._in(batch), self._threads)

    def _file(self, batch: Arrays) -> bytes:
        return self._files[None if None in self._files else len(batch[0])]

    def _in(self, batch: Arrays) -> dict[str, np.ndarray]:
        """Return a batch as the file takes it."""
        details = self._any.inputs.values()
        if any(detail["dtype"] == np.int8 for detail in details):
            batch = in_codes(self._any, self._arguments, batch)
        names = [argument.name for argument in self._arguments]
        return dict(zip(names, batch, strict=True))


def _as_floats(output: np.ndarray, detail: dict[str, Any]) -> np.ndarray:
    scale, zero = detail["quantization"]
    if output.dtype != np.int8:
        return output
    return (output.astype(np.float32) - zero) * np.float32(scale)


def _as_it_is(given: Given) -> Runnable:
    return InKeras(given.model)


def _int8_weights(given: Given) -> Runnable:
    model, _ = Quantize("int8").applied(given.model)
    return InKeras(model)


def _file(scheme: str) -> Callable[[Given], Runnable]:
    return lambda given: _exported(given.model, given, scheme)


def _static(given: Given) -> Runnable:
    if given.data is None:
        raise ConfigError(
            "It needs samples to calibrate on. Next: give data= (--data)."
        )
    model, _ = Quantize(STATIC).applied(given.model, Context(given.data))
    return _exported(model, given, STATIC)


def _exported(model: Any, given: Given, scheme: str) -> Runnable:
    """Return a file for any batch, or of a loop over time steps one for each."""
    has_loop = any(isinstance(layer, keras.layers.RNN) for layer in sublayers(model))
    sizes = given.batch_sizes if has_loop else (None,)
    files = {size: _content(model, given, scheme, size) for size in sizes}
    return InLiteRT(files, given)


def _content(model: Any, given: Given, scheme: str, batch_size: int | None) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder:
        path = Path(folder, "model.tflite")
        samples = in_structure(model, given.batch)
        export(
            model,
            path,
            scheme=scheme,
            batch_size=batch_size,
            samples=samples,
            **given.files,
        )
        return path.read_bytes()


_FLOAT_HOW = 'km.export(model, "m.tflite")'
_DYNAMIC_HOW = f'km.export(model, "m.tflite", scheme="{DYNAMIC}")'
_STATIC_HOW = f'km.compress(model, km.Quantize("{STATIC}"), data=x).export("m.tflite")'

FORMS = (
    Form("Keras, as it is", "model", _as_it_is, needs_keras=True),
    Form(
        "Keras, int8 weights",
        'km.compress(model, km.Quantize("int8")).model',
        _int8_weights,
        needs_keras=True,
    ),
    Form("LiteRT, float", _FLOAT_HOW, _file("float")),
    Form(f"LiteRT, {DYNAMIC}", _DYNAMIC_HOW, _file(DYNAMIC)),
    Form(f"LiteRT, {STATIC}", _STATIC_HOW, _static),
)
