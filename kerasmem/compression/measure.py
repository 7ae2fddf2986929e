"""Measures a model: file size, weights, activations, latency and metrics.

A model whose weights stay on disk is evaluated layer by layer. Keras needs all weights
in memory, and in eager mode also all activations. Here, each layer loads its weights
only for its call, and activations are freed after their last use.
"""

import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.lazy import source_at_rest
from kerasmem.checks import OneOf, invalid
from kerasmem.compression.judge import in_order, lacks_labels
from kerasmem.errors import KerasMemWarning, OutputError, first_line, text_of
from kerasmem.files.contents import FileSize
from kerasmem.files.data import (
    check_ends,
    fit_arguments,
    sample_inputs,
)
from kerasmem.files.data.check import flat_samples
from kerasmem.files.data.forms import labeled_batches
from kerasmem.files.weights import Coding
from kerasmem.files.write import save_stored, write_model
from kerasmem.graph.activations import peak_activation_bytes
from kerasmem.graph.clone import unchanged_state
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.layers import has_own_step, nodes_in_order, own_graph, sublayers
from kerasmem.graph.outputs import output_of, without_preprocessor
from kerasmem.graph.values import nbytes, nonzero, parameters
from kerasmem.records import ModelFigures
from kerasmem.stats.timing import in_turns, spread
from kerasmem.types import Dataset, Layer, Model, Operation, Tensor


def is_offloaded(model: Model) -> bool:
    """Returns whether weights of a model stay on disk."""
    return any(source_at_rest(variable) is not None for variable in model.variables)


def evaluate_by_layers(
    model: Model, data: Dataset, batch_size: int
) -> dict[str, float]:
    """Returns the losses and metrics of a model, like `model.evaluate`.

    The loss of each output is the mean over samples. Keras averages over batches, which
    differs if the last batch is smaller.

    The model must use the standard evaluation of Keras.
    """
    model.reset_metrics()
    total, count, forward = 0.0, 0, _forward(model)
    with current().inference():
        for batch in labeled_batches(data, batch_size):
            x, y, weight = keras.tree.map_structure(_tensor, batch)
            outputs = forward(batch[0])
            loss = model.compute_loss(x, y, outputs, weight, training=False)
            samples = len(keras.tree.flatten(batch[0])[0])
            total, count = total + samples * float(loss), count + samples
            model.compute_metrics(x, y, outputs, sample_weight=weight)
    values = {k: float(value) for k, value in model.get_metrics_result().items()}
    return {**values, "loss": total / max(count, 1)}


def _tensor(array: Tensor) -> Any:
    return None if array is None else keras.ops.convert_to_tensor(array)


def _forward(model: Model) -> Any:
    if own_graph(model) is None or _adds_losses_twice(model):
        return lambda x: model(x, training=False)
    calls, form = flatten(model), output_of(model)

    def forward(x: Tensor) -> Any:
        count = len(keras.tree.flatten(x)[0])
        tensors = map(keras.ops.convert_to_tensor, flat_samples(model, (x,), count))
        return keras.tree.pack_sequence_as(form, calls.run([*tensors], _wait))

    return forward


def _wait(_: str, tensor: Tensor) -> None:
    # JAX runs asynchronously, so the weights of all queued layers would be in memory.
    keras.ops.convert_to_numpy(tensor)


def _adds_losses_twice(model: Model) -> bool:
    """Returns whether a layer that is called several times may add a loss each time.

    Outside of a model call, Keras keeps only the losses of the last call.
    """
    graph = own_graph(model)
    counts = Counter(id(node.operation) for node in nodes_in_order(graph))
    operations = [
        n.operation for n in nodes_in_order(graph) if counts[id(n.operation)] > 1
    ]
    inside = [each for one in operations for each in _layers(one)]
    return any(_may_add_loss(layer) for layer in inside)


def _layers(operation: Operation) -> list[Any]:
    return sublayers(operation) if isinstance(operation, keras.layers.Layer) else []


def _may_add_loss(layer: Layer) -> bool:
    is_keras = type(layer).__module__.partition(".")[0] in ("keras", "kerasmem")
    adds_by_itself = isinstance(layer, keras.layers.ActivityRegularization)
    return not is_keras or adds_by_itself or layer.activity_regularizer is not None


Latency = dict[str, Any]
"""Latency entries of `ModelFigures`: median time of a forward pass in ms, batch size
and, after several passes, the 10th and 90th percentiles."""


FILE, WEIGHTS, METRICS = "file", "weights", "metrics"
ACTIVATIONS, LATENCY = "activations", "latency"
FIGURES = (FILE, WEIGHTS, METRICS, ACTIVATIONS, LATENCY)
"""Names of all figures."""


def check_figures(measure: Any, caller: str) -> tuple[str, ...]:
    """Returns the names of the figures in an argument `measure` of `caller`.

    Raises `ConfigError` for other names.
    """
    names = (measure,) if isinstance(measure, str) else measure
    if not isinstance(names, Sequence):
        raise invalid(caller, "measure", measure, "some of " + ", ".join(FIGURES))
    for name in names:
        OneOf(FIGURES).check(caller, "measure", name)
    return tuple(names)


def measure(
    model: Model,
    validation_data: Dataset = None,
    batch_size: int = 32,
) -> ModelFigures:
    """Returns all figures of `model`, with the file size in deflate coding.

    Metrics need a compiled model and validation data.
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
    """Returns the figures of `model` except for its latency.

    Figures that are not in `measured` are `None`, as is a file size that was not
    measured.
    """
    values = size._asdict() if size is not None and FILE in measured else {}
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
    """Returns the metrics and losses of `model` on `data`, empty without labels."""
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
            # Raw text was rejected before.
            with without_preprocessor([model]), unchanged_state(model):
                metrics = model.evaluate(**arguments, verbose=0, return_dict=True)
        except Exception:
            if is_unlabeled:  # this custom `test_step` needs labels
                return {}
            raise
    return in_order(model, metrics)


def latencies(
    models: Sequence[Any],
    data: Dataset = None,
    batch_size: int = 32,
    limit: float = math.inf,
) -> list[Latency]:
    """Returns the median latency of one batch for each model.

    The models alternate, so that changes in machine speed affect all of them. A latency
    is empty if the input has dynamic axes and there is no data.

    `limit` is the time budget for all models in seconds, see `in_turns`. A model that
    needs longer for two batches is timed once, without percentiles.
    """
    inputs = batch_of(models[0], data, batch_size)
    if inputs is None:
        return [{} for _ in models]
    # Distributed processes must call `predict` equally often.
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
    """Returns `latencies`, or empty ones with a warning if a model cannot predict."""
    try:
        return latencies(models, data, batch_size, limit)
    except Exception as error:  # noqa: BLE001 - the other figures are still valid
        warnings.warn(
            f"No latency was measured: {type(error).__name__} in `predict_on_batch`: "
            f"{first_line(text_of(error))} Next: call `predict_on_batch` on both "
            "models.",
            KerasMemWarning,
            stacklevel=4,
        )
        return [{} for _ in models]


def batch_of(model: Model, data: Dataset, batch_size: int) -> Any:
    """Returns a batch of samples or zeros, or `None` if the input shape is unknown."""
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


def size_or_warning(model: Model, **options: Any) -> FileSize | None:
    """Returns `size_of`, or `None` with a warning if no file can be written."""
    try:
        return size_of(model, **options)
    except OutputError as error:
        warnings.warn(
            f"No file size was measured: {error} Next: set the environment variable "
            "TMPDIR to a folder with more space.",
            KerasMemWarning,
            stacklevel=4,
        )
        return None


def size_of(
    model: Model, *, stored: bool = False, coding: Coding = "deflate"
) -> FileSize:
    """Returns the file size of `model` without optimizer state.

    `stored` selects the uncompressed file that Keras writes.

    Raises:
        OutputError: If a temporary file cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            if stored:
                save_stored(model, path)
            else:
                write_model(model, path, coding)
            return FileSize(path.stat().st_size)
    except OSError as error:
        raise OutputError(
            "Could not write a temporary file to measure the size of the model, in "
            f"{tempfile.gettempdir()!r}: {error}."
        ) from error
