"""Quantizes a float file: its ranges, its precisions and its loss."""

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import keras
import numpy as np

from kerasmem.backends.converting import Argument
from kerasmem.backends.patching import LayerCall
from kerasmem.compression.quantize import config
from kerasmem.compression.quantize.aware.learned import is_static
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.owners import as_floats, quantized_variables
from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.extras.litert import litert_writer, onnx_writer
from kerasmem.extras.litert.arguments import in_structure, outputs_in_keras
from kerasmem.extras.litert.convert import LITERT, ONNX
from kerasmem.extras.litert.file_graph import (
    DYNAMIC,
    DYNAMIC_INT4,
    INT8,
    PRODUCTS,
    FileGraph,
    FileOperation,
    Precisions,
    Ranges,
    ReadTensors,
    Seen,
    batch_length,
    batches_of,
    observe,
)
from kerasmem.extras.litert.file_loss import Judge, Judged, check_labels, classifiers
from kerasmem.extras.litert.interpreters import LiteRT, Onnx, float_outputs, outputs_of
from kerasmem.extras.litert.options import INT4, own_scheme
from kerasmem.extras.litert.precisions import Candidates, Found, PrecisionSearch, Tried
from kerasmem.graph.layers import sublayers
from kerasmem.graph.observe import observe as observe_layers
from kerasmem.types import Model

_PRECISIONS = {config.STATIC: INT8, config.DYNAMIC: DYNAMIC, INT4: DYNAMIC_INT4}
_WRITERS: dict[str, tuple[ModuleType, Any]] = {
    LITERT: (litert_writer, litert_writer.LitertWriter),
    ONNX: (onnx_writer, onnx_writer.OnnxWriter),
}
_OF_FIXED_RANGE = {"LOGISTIC", "SOFTMAX", "TANH", "Sigmoid", "Softmax", "Tanh"}


@dataclass(frozen=True)
class FileJob:
    """A file to write.

    Args:
        model: Copy of the model that computes in float32. May be modified.
        kind: `LITERT` or `ONNX`.
        scheme: Scheme of the file.
        arguments: Inputs of the file.
        arrays: Samples, one array per input.
        batch_size: Length of the batch axis, or None for an open axis.
        content: Bytes of the float file.
    """

    model: Any
    kind: str
    scheme: str
    arguments: Sequence[Argument]
    arrays: Sequence[np.ndarray]
    batch_size: int | None
    content: bytes = b""


def quantized(job: FileJob, judged: Judged) -> Found:
    """Return the file with precisions within the allowed loss.

    Raises:
        ConfigError: If a package is missing.
        DataError: If a tensor contains NaN or infinity on the samples.
        ModelError: If the runtime cannot run a file.
    """
    (formats, writer_class), judge = _WRITERS[job.kind], _judge(job, judged)
    graph: FileGraph = formats.read_graph(job.content)
    names = [argument.name for argument in job.arguments]
    read = formats.tensor_reader(graph.content)
    rows = job.batch_size or batch_length(read, next(batches_of(names, job.arrays, 1)))
    first = next(batches_of(names, job.arrays, rows))
    observations = observe(read, batches_of(names, job.arrays, rows))
    graph.shapes = formats.shapes_in_loops(graph.content, first)
    graph.shapes |= {name: one.shape for name, one in observations.items()}
    graph.has_codes = bool(quantized_variables(job.model))
    ranges = {name: one.range for name, one in observations.items()}
    own, stays = own_ranges(job, graph, read)
    ranges |= table_ranges(graph, observations) | dict(own)
    writer = writer_class(graph, ranges)
    errors: list[ModelError] = []

    def attempt(precisions: Precisions) -> Tried:
        try:
            content = writer.write(precisions)
            outputs = _run(job, content, judged.arrays, rows)
        except ModelError as error:  # the runtime may support other precisions
            errors.append(error)
            return Tried(b"", [], math.inf)
        return Tried(content, outputs, judge.loss(outputs))

    stays |= graph.stays
    candidates = Candidates(graph, observations, ranges, stays, formats.supports)
    best = PrecisionSearch(candidates, attempt, judge).run(_PRECISIONS[job.scheme])
    if not best.file.content:
        raise errors[0]
    return best


def _judge(job: FileJob, judged: Judged) -> Judge:
    """Compare with the model without rounding of its activations.

    If the file rounds them too, the loss of the model is added to the tolerance.
    """
    with as_floats(job.model):
        float_outputs = outputs_in_keras(job.model, judged.arrays, judged.batch_size)
    classifies = classifiers(judged.model_loss, float_outputs)
    labels = judged.labels if all(classifies) else None
    if labels is not None:
        check_labels(labels, float_outputs)
    judge = Judge(float_outputs, classifies, labels, judged.tolerance)
    rounds = is_static(job.model) or any(
        variable.dynamic for variable in quantized_variables(job.model)
    )
    if not rounds or own_scheme(job.model) != job.scheme:
        return judge
    own = judge.loss(outputs_in_keras(job.model, judged.arrays, judged.batch_size))
    judge = replace(judge, own_loss=own if math.isfinite(own) else 0.0)
    if judge.own_loss > judge.own_tolerance:
        warnings.warn(
            f"The model {job.model.name!r} loses accuracy by rounding its activations, "
            f"and so does its file. Received: {judge.measure} of {own:.3g} on "
            f"{len(judged.arrays[0])} samples. Next: compress it again with more "
            "samples in data=, or pass the float model to km.export.",
            KerasMemWarning,
            stacklevel=5,
        )
    return judge


def _run(
    job: FileJob, content: bytes, arrays: Sequence[np.ndarray], rows: int
) -> list[np.ndarray]:
    if job.kind == ONNX:
        return outputs_of(Onnx(content), job.arguments, arrays, rows)
    file = LiteRT(content, threads=os.cpu_count() or 1)
    return float_outputs(file, job.arguments, arrays, rows)


def table_ranges(graph: FileGraph, seen: dict[str, Seen]) -> dict[str, Any]:
    """Return the ranges of table lookups, which are the ranges of the tables."""
    ranges = {}
    for operation in graph.operations:
        tables = [graph.constants.get(name) for name in operation.constants]
        tables = [table for table in tables if table is not None and table.size]
        if operation.is_lookup and tables:
            ends = Seen(())
            ends.add(operation.outputs[0], tables[0])
            ranges |= {name: ends.range for name in operation.outputs if name in seen}
    return ranges


def own_ranges(
    job: FileJob, graph: FileGraph, read: ReadTensors
) -> tuple[Ranges, dict[FileOperation, str]]:
    """Return the ranges stored in the model, by tensor of the file.

    Tensors of file and model are matched by their values.

    Returns:
        The ranges, and a reason for each operation that stays float in the model.
    """
    size = job.batch_size or min(_MATCHED, len(job.arrays[0]))
    rows = np.linspace(0, len(job.arrays[0]) - 1, size).astype(int)
    few = [array[rows] for array in job.arrays]
    fixed_ranges = held_ranges(job.model, few)
    if not fixed_ranges:
        return {}, {}
    names = [argument.name for argument in job.arguments]
    ranges, floats = {}, set[str]()
    for name, values in read(dict(zip(names, few, strict=True))):
        floats.add(name)
        like = [ends for tensor, ends in fixed_ranges if _is_same(tensor, values)]
        if like:
            ranges[name] = like[0]
    return ranges, _floats_of(graph, ranges, floats)


_MATCHED = 4
"""Number of samples for matching tensors by their values."""


def held_ranges(
    model: Model, arrays: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, tuple[float, float]]]:
    """Return the fixed ranges of a model with the values of their tensors."""
    if not is_static(model):
        return []
    quantizers = [one for one in sublayers(model) if isinstance(one, FakeQuantize)]
    ranges: list[tuple[np.ndarray, tuple[float, float]]] = []

    def see(call: LayerCall) -> None:
        values = keras.ops.convert_to_numpy(call.x)
        ranges.append((values, call.layer.ends))

    with as_floats(model):
        observe_layers(model, [in_structure(model, arrays)], quantizers, inputs=see)
    return ranges


def _floats_of(
    graph: FileGraph, known: Ranges, floats: set[str]
) -> dict[FileOperation, str]:
    """Return the operations that are float in the model: their ranges are unknown.

    `floats` are the names of all float tensors.
    """
    names = set(known)
    for operation in graph.operations:
        follows = operation.moves or operation.kind in _OF_FIXED_RANGE
        if follows and names.issuperset(operation.inputs):
            names.update(operation.outputs)
    makers = {name: one for one in graph.operations for name in one.outputs}
    for operation in reversed(graph.operations):
        # A product may have its bias in a separate operation.
        adds = operation.kind in ("ADD", "Add") and operation.constants
        if (adds or operation.moves) and names.issuperset(operation.outputs):
            names.update(n for n in operation.inputs if _is_of_product(makers, n))
    return {
        operation: "without a range in the model"
        for operation in graph.operations
        if not names.issuperset(operation.outputs or operation.inputs)
        # A product's input may have a range in the model behind a scaling.
        or (
            operation.kind not in PRODUCTS
            and not names.issuperset(floats.intersection(operation.inputs))
        )
    }


def _is_of_product(makers: Mapping[str, FileOperation], name: str) -> bool:
    while name in makers:
        operation = makers[name]
        if not (operation.moves and operation.inputs):
            return operation.kind in PRODUCTS
        name = operation.inputs[0]
    return False


def _is_same(one: np.ndarray, two: np.ndarray) -> bool:
    if one.size != two.size or not np.ptp(one):
        return False  # equal constants occur in many tensors
    most = float(np.abs(one).max())
    return np.allclose(one.ravel(), two.ravel(), rtol=1e-3, atol=1e-4 * most)
