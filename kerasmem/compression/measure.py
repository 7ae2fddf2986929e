"""The figures of a model: its file, its weights, its speed, its metrics."""

import math
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.judge import in_order, lacks_labels
from kerasmem.compression.layer_by_layer import evaluate_by_layers, is_offloaded
from kerasmem.errors import KerasMemWarning, OutputError, first_line, text_of
from kerasmem.files.contents import FileSize, file_size
from kerasmem.files.data import (
    check_ends,
    fit_arguments,
    sample_inputs,
)
from kerasmem.files.weights import Coding
from kerasmem.files.write import save_stored, write_model
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.layers import has_own_step
from kerasmem.graph.outputs import without_preprocessor
from kerasmem.graph.values import nbytes, nonzero, parameters
from kerasmem.records import ModelFigures
from kerasmem.stats.timing import in_turns, spread
from kerasmem.types import Dataset, Model

Latency = dict[str, Any]
"""The figures of a model's speed, by their names in `ModelFigures`: the median time of
one forward pass, the samples in its batch, and between which times eight in ten passes
took, if more than one was taken."""


FILE, WEIGHTS, METRICS = "file", "weights", "metrics"
ACTIVATIONS, LATENCY = "activations", "latency"
FIGURES = (FILE, WEIGHTS, METRICS, ACTIVATIONS, LATENCY)
"""What can be measured of a model."""


def measure(
    model: Model,
    validation_data: Dataset = None,
    batch_size: int = 32,
) -> ModelFigures:
    """Return all figures of `model`, its file the deflated one of `km.save_model`.

    Args:
        model: a built model; metrics are measured only if it is compiled.
        validation_data: samples to judge it by, with labels; None for no metrics.
        batch_size: samples per batch, for the metrics and the latency.
    """
    (latency,) = latencies([model], validation_data, batch_size)
    own_figures = figures(model, validation_data, batch_size, size_of(model))
    return replace(own_figures, **latency)


def figures(
    model: Model,
    validation_data: Dataset,
    batch_size: int,
    size: FileSize | None,
    measured: Sequence[str] = FIGURES,
) -> ModelFigures:
    """Return the figures of `model` but its latency.

    Args:
        model: a built model.
        validation_data: as for `measure`.
        batch_size: samples per batch, for the metrics.
        size: of its file, which was measured already; None if it was not.
        measured: which of `FIGURES`; all others are None.
    """
    values = {} if size is None else size._asdict()
    if WEIGHTS in measured:
        values["weight_bytes"] = sum(map(nbytes, model.weights))
        values["parameters"] = sum(map(parameters, model.weights))
        values["nonzero"] = sum(map(nonzero, model.weights))
    if ACTIVATIONS in measured:
        values["activation_peak_bytes"] = peak_activation_bytes(model)
    if METRICS in measured and validation_data is not None:
        values["metrics"] = evaluate(model, validation_data, batch_size)
    return ModelFigures(**values)


def evaluate(model: Model, data: Dataset, batch_size: int = 32) -> dict[str, float]:
    """Return the metrics and losses of `model` on `data`, empty without labels."""
    if not model.compiled:
        return {}
    check_ends(data, "the evaluation")
    arguments = fit_arguments(data, batch_size)
    is_unlabeled = lacks_labels(data)
    if is_unlabeled and not has_own_step(model, "test_step"):
        return {}
    if is_offloaded(model):
        metrics = evaluate_by_layers(model, data, batch_size)
    else:
        try:
            with without_preprocessor([model]):  # texts were refused before
                metrics = model.evaluate(**arguments, verbose=0, return_dict=True)
        except Exception:
            if is_unlabeled:  # which this `test_step` takes
                return {}
            raise
    return in_order(model, metrics)


def latencies(
    models: Sequence[Any],
    data: Dataset = None,
    batch_size: int = 32,
    limit: float = math.inf,
) -> list[Latency]:
    """Return the median time of one batch through each of `models`.

    The models take turns, so that a machine that changes its speed does so for all.
    A latency is empty where an input has no fixed shape and no data tells one.

    Args:
        models: what to time.
        data: samples to take the batch of; None for one of zeros.
        batch_size: samples in it.
        limit: seconds for all models together, see `in_turns`; a model that takes
            longer for two batches is timed by one, without a spread.
    """
    inputs = batch_of(models[0], data, batch_size)
    if inputs is None:
        return [{} for _ in models]
    # Processes that predict together have to do so equally often.
    most = {"most": 5, "seconds": math.inf} if _are_several(models[0]) else {}
    calls = [partial(model.predict_on_batch, inputs) for model in models]
    with without_preprocessor(models):
        times = in_turns(calls, **most, limit=math.inf if most else limit)
    samples = len(keras.tree.flatten(inputs)[0])
    return [_latency(own_times, samples) for own_times in times]


def _latency(times: list[float], samples: int) -> Latency:
    if len(times) == 1:
        return {"latency_ms": times[0], "latency_batch_size": samples}
    low, median, high = spread(times)
    ends = {"latency_low_ms": low, "latency_high_ms": high}
    return {"latency_ms": median, "latency_batch_size": samples, **ends}


def _are_several(model: Model) -> bool:
    _, processes = current().processes(model)
    return processes > 1


def latencies_or_warning(
    models: Sequence[Any], data: Dataset, batch_size: int, limit: float
) -> list[Latency]:
    """Return `latencies`; empty ones, with a warning, if a model cannot predict."""
    try:
        return latencies(models, data, batch_size, limit)
    except Exception as error:  # noqa: BLE001 - the other figures are right
        warnings.warn(
            f"No latency was measured: {type(error).__name__} in `predict_on_batch`: "
            f"{first_line(text_of(error))} Next: try it on both models.",
            KerasMemWarning,
            stacklevel=4,
        )
        return [{} for _ in models]


def batch_of(model: Model, data: Dataset, batch_size: int) -> Any:
    """Return inputs of one batch, of samples or zeros; None if no shape is known."""
    batch_size = fixed_batch(model) or batch_size
    if data is not None:
        return sample_inputs(data, batch_size)
    inputs = getattr(model, "inputs", None)
    if not inputs or any(None in t.shape[1:] or t.dtype == "string" for t in inputs):
        return None
    arrays = {
        tensor.name: np.zeros(
            (batch_size, *tensor.shape[1:]),
            keras.backend.standardize_dtype(tensor.dtype),
        )
        for tensor in inputs
    }
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def size_of(
    model: Model, *, stored: bool = False, coding: Coding = "deflate"
) -> FileSize:
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
                write_model(model, path, coding)
            return file_size(path)
    except OSError as error:
        raise OutputError(
            "Could not write a temporary file to measure its size, in "
            f"{tempfile.gettempdir()!r}: {error}"
        ) from error
