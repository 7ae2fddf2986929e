"""The figures of a model: its file, its weights, its speed, its metrics."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.judge import in_order
from kerasmem.errors import OutputError
from kerasmem.files.data import fit_arguments, sample_inputs
from kerasmem.files.save import Coding, save_stored, write_small
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.values import nbytes, nonzero, parameters
from kerasmem.records import ModelFigures
from kerasmem.stats.timing import in_turns, spread


@dataclass(frozen=True)
class Latency:
    """Median time of one forward pass, and the samples in its batch.

    Eight in ten passes took between `low` and `high` milliseconds.
    """

    milliseconds: float
    batch_size: int
    low: float | None = None
    high: float | None = None


def measure(
    model: Any,
    validation_data: Any = None,
    batch_size: int = 32,
) -> ModelFigures:
    """Return the figures of `model`, its file the deflated one of `km.save_model`.

    Args:
        model: a built model; metrics are measured only if it is compiled.
        validation_data: samples to judge it by, with labels; None for no metrics.
        batch_size: samples per batch, for the metrics and the latency.
    """
    (latency,) = latencies([model], validation_data, batch_size)
    return figures(model, validation_data, batch_size, latency, file_bytes(model))


def figures(
    model: Any,
    validation_data: Any,
    batch_size: int,
    latency: Latency | None,
    file_bytes: int,
) -> ModelFigures:
    """Return the figures of `model` whose latency and file were measured already."""
    return ModelFigures(
        file_bytes=file_bytes,
        weight_bytes=sum(nbytes(variable) for variable in model.weights),
        parameters=sum(map(parameters, model.weights)),
        nonzero=sum(map(nonzero, model.weights)),
        activation_peak_bytes=peak_activation_bytes(model),
        latency_ms=latency.milliseconds if latency else None,
        latency_batch_size=latency.batch_size if latency else None,
        latency_low_ms=latency.low if latency else None,
        latency_high_ms=latency.high if latency else None,
        metrics=evaluate(model, validation_data, batch_size),
    )


def evaluate(model: Any, data: Any, batch_size: int = 32) -> dict[str, float]:
    """Return the metrics and losses of `model` on `data`, empty without labels."""
    if data is None or not model.compiled:
        return {}
    arguments = fit_arguments(data, batch_size)
    if "batch_size" in arguments and arguments.get("y") is None:
        return {}
    found = model.evaluate(**arguments, verbose=0, return_dict=True)
    return in_order(model, found)


def latencies(
    models: Sequence[Any], data: Any = None, batch_size: int = 32
) -> list[Latency | None]:
    """Return the median time of one batch through each of `models`.

    The models take turns, so that a machine that changes its speed does so for all.
    None where a model's input has no fixed shape and no data tells one.
    """
    inputs = _some_inputs(models[0], data, batch_size)
    if inputs is None:
        return [None for _ in models]
    # Processes that predict together have to do so equally often.
    _, processes = current().processes(models[0])
    limit = {"most": 5, "seconds": math.inf} if processes > 1 else {}
    calls = [partial(model.predict_on_batch, inputs) for model in models]
    times = in_turns(calls, **limit)
    samples = len(keras.tree.flatten(inputs)[0])
    spreads = [spread(found) for found in times]
    return [Latency(median, samples, low, high) for low, median, high in spreads]


def _some_inputs(model: Any, data: Any, batch_size: int) -> Any:
    if data is not None:
        return sample_inputs(data, batch_size)
    inputs = getattr(model, "inputs", None)
    if not inputs or any(None in t.shape[1:] or t.dtype == "string" for t in inputs):
        return None
    arrays = {
        tensor.name: np.zeros(
            (tensor.shape[0] or batch_size, *tensor.shape[1:]),
            keras.backend.standardize_dtype(tensor.dtype),
        )
        for tensor in inputs
    }
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def file_bytes(model: Any, *, stored: bool = False, coding: Coding = "deflate") -> int:
    """Return the size of the file that `model` makes, without optimizer state.

    Args:
        model: a built model.
        stored: True for the file as Keras itself writes it, False for a smaller one.
        coding: of the smaller one, as for `km.save_model`.

    Raises:
        OutputError: if there is no room for a temporary file.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            if stored:
                save_stored(model, path)
            else:
                write_small(model, path, coding)
            return path.stat().st_size
    except OSError as error:
        raise OutputError(
            "Could not write a temporary file to measure its size, in "
            f"{tempfile.gettempdir()!r}: {error}"
        ) from error
