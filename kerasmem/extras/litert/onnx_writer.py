"""Writes quantized ONNX files with onnxruntime.quantization."""

import importlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kerasmem.backends.converting import quiet
from kerasmem.errors import ModelError, first_line
from kerasmem.extras.litert.file_graph import (
    DYNAMIC,
    FLOAT,
    INT8,
    WEIGHT_ONLY,
    FileGraph,
    FileOperation,
    Precisions,
    Ranges,
    ReadTensors,
    kernel_of,
)
from kerasmem.extras.litert.interpreters import Onnx
from kerasmem.extras.litert.onnx_loops import (
    codes_of,
    inline_weights,
    loop_products,
    round_products,
    shapes_in_loops,
)

__all__ = ["OnnxWriter", "read_graph", "shapes_in_loops", "supports", "tensor_reader"]

_DYNAMIC_KINDS = {"MatMul", "Gemm", "LSTM"}
"""Excludes Conv, whose dynamic form has one scale and is slower than float."""
_KERNEL_AXIS = {"Conv": 0, "ConvTranspose": 1}


def read_graph(content: bytes) -> FileGraph:
    """Read the operations of a float ONNX file after shape inference."""
    onnx = importlib.import_module("onnx")
    model = _prepared(content)
    graph = model.graph
    constants = {each.name: each for each in graph.initializer}
    floats = {
        each.name
        for each in (*graph.value_info, *graph.output)
        if each.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    operations = []
    for number, node in enumerate(graph.node):
        node.name = f"{node.op_type}_{number}"  # some nodes have no name
        activations = tuple(n for n in node.input if n and n not in constants)
        operations.append(
            FileOperation(
                node.op_type,
                activations,
                tuple(n for n in node.input if n in constants),
                tuple(n for n in node.output if n),
                has_floats=not floats.isdisjoint(node.output),
                label=node.name,
            )
        )
    operations += loop_products(model)
    arrays = {
        name: onnx.numpy_helper.to_array(each)
        for name, each in constants.items()
        if each.data_type == onnx.TensorProto.FLOAT
    }
    stays = _before_loops(graph, operations)
    return FileGraph(model.SerializeToString(), operations, arrays, stays)


def _before_loops(
    graph: Any, operations: Sequence[FileOperation]
) -> dict[FileOperation, str]:
    """Return the operations that only move a tensor used in the body of a loop.

    onnxruntime 1.32 aborts the process if it moves a DequantizeLinear over one of them.
    The loop body refers to the tensor by name, not as an input of the node.
    """
    names = {
        name
        for node in graph.node
        for attribute in node.attribute
        for inner in attribute.g.node
        for name in inner.input
    }
    stays = {}
    for operation in reversed(operations):
        if operation.moves and names.intersection(operation.outputs):
            names.update(operation.inputs)
            stays[operation] = "moving a tensor that the body of a loop reads"
    return stays


def _prepared(content: bytes) -> Any:
    onnx = importlib.import_module("onnx")
    room = importlib.import_module("onnxruntime.quantization.shape_inference")
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder, quiet():
        source, target = Path(folder, "float.onnx"), Path(folder, "prepared.onnx")
        model = onnx.load_from_string(content)
        inline_weights(model)
        onnx.save(model, source)
        try:
            room.quant_pre_process(source, target, skip_symbolic_shape=True)
        except Exception as error:  # onnxruntime's errors have no common base class
            raise ModelError(
                "onnxruntime.quantization cannot read the float file: "
                f"{first_line(str(error))[:300]}"
            ) from error
        model = onnx.load(target)
    for node in model.graph.node:
        if node.op_type == "Gemm" and len(node.input) == 2:
            # Only Gemm with beta=1 can be dynamic. Without a bias, beta has no effect.
            for beta in (each for each in node.attribute if each.name == "beta"):
                beta.f = 1.0
    return model


def tensor_reader(content: bytes) -> ReadTensors:
    """Return a function that reads the float tensors of a file, except in loops."""
    onnx = importlib.import_module("onnx")
    model = onnx.load_from_string(content)
    present = {output.name for output in model.graph.output}
    inner = [name for node in model.graph.node for name in node.output if name]
    for name in inner:
        if name not in present:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    names = [output.name for output in model.graph.output]
    file = Onnx(model.SerializeToString())

    def read(batch: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        values = dict(zip(names, file.run(names, batch), strict=True)) | dict(batch)
        for name, array in values.items():
            if isinstance(array, np.ndarray) and array.dtype == np.float32:
                yield name, array

    return read


@cache
def supports(kind: str, precision: str) -> bool:
    """Return whether an operation type supports a precision."""
    if precision == INT8:
        room = importlib.import_module("onnxruntime.quantization.registry")
        return kind in room.QDQRegistry or kind in room.QLinearOpsRegistry
    return {
        DYNAMIC: kind in _DYNAMIC_KINDS,
        WEIGHT_ONLY: kind in ("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather"),
    }.get(precision, precision == FLOAT)


class OnnxWriter:
    """Rewrites a float file with a precision for each operation.

    The scales of int8 codes follow from the largest weight.
    """

    def __init__(self, graph: FileGraph, ranges: Ranges) -> None:
        self._graph, self._ranges = graph, ranges

    def write(self, precisions: Precisions) -> bytes:
        """Write the file. Operations without a precision stay float."""
        model = self._with_codes(precisions)
        labels = {
            kind: [
                each.label
                for each, precision in precisions.items()
                if precision == kind and not each.is_inner
            ]
            for kind in (INT8, DYNAMIC)
        }
        with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder, quiet():
            target = Path(folder, "made.onnx")
            try:
                if labels[INT8]:
                    model = self._static(model, labels[INT8], target)
                if labels[DYNAMIC]:
                    model = _dynamic(model, labels[DYNAMIC], target)
            except Exception as error:  # the errors have no common base class
                raise ModelError(
                    "onnxruntime.quantization cannot write the file: "
                    f"{first_line(str(error))[:300]}"
                ) from error
        _shorten(model)
        return model.SerializeToString()

    def _with_codes(self, precisions: Precisions) -> Any:
        """Return the model with codes for weight-only operations and for loops."""
        model = importlib.import_module("onnx").load_from_string(self._graph.content)
        in_loops = []
        for operation, precision in precisions.items():
            if precision == WEIGHT_ONLY:
                _store_codes(model, operation, self._graph)
            elif operation.is_inner and precision == DYNAMIC:
                in_loops.append(operation)
        # quantize_dynamic would split each Gemm in a body first.
        if in_loops:
            round_products(model, in_loops, self._graph.constants)
        return model

    def _static(self, model: Any, labels: list[str], target: Path) -> Any:
        onnx = importlib.import_module("onnx")
        room = importlib.import_module("onnxruntime.quantization")
        ends = {
            name: [{"rmin": np.float32(low), "rmax": np.float32(high)}]
            for name, (low, high) in self._ranges.items()
        }
        names = set(labels)
        kinds = {node.op_type for node in model.graph.node if node.name in names}
        room.quantize_static(
            model,
            target,
            _reader(room, model),
            op_types_to_quantize=sorted(kinds),
            nodes_to_quantize=labels,
            per_channel=True,
            activation_type=room.QuantType.QUInt8,
            extra_options={"TensorQuantOverrides": ends},
        )
        return onnx.load(target)


def _reader(room: Any, model: Any) -> Any:

    class Zeros(room.CalibrationDataReader):
        def __init__(self) -> None:
            self._batches: Iterator[Any] = iter([_zeros(model)])

        def get_next(self) -> Any:
            return next(self._batches, None)

    return Zeros()


def _zeros(model: Any) -> dict[str, np.ndarray]:
    onnx = importlib.import_module("onnx")
    zeros = {}
    for each in model.graph.input:
        kind = each.type.tensor_type
        dims = [dim.dim_value or 1 for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        zeros[each.name] = np.zeros(dims, dtype)
    return zeros


def _dynamic(model: Any, labels: list[str], target: Path) -> Any:
    onnx = importlib.import_module("onnx")
    room = importlib.import_module("onnxruntime.quantization")
    also = [f"{label}_MatMul" for label in labels]  # onnxruntime splits a Gemm
    room.quantize_dynamic(
        model, target, per_channel=True, nodes_to_quantize=[*labels, *also]
    )
    return onnx.load(target)


def _shorten(model: Any) -> None:
    graph = model.graph
    ends = {each.name for each in (*graph.input, *graph.output)}
    names = {"": ""} | {name: name for name in ends}

    def short(name: str) -> str:
        return names.setdefault(name, f"_{len(names)}")

    def rename(inner: Any) -> None:
        del inner.value_info[:]
        for each in (*inner.initializer, *inner.input, *inner.output):
            each.name = short(each.name)
        for node in inner.node:
            node.name = ""
            node.input[:] = [short(name) for name in node.input]
            node.output[:] = [short(name) for name in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    rename(attribute.g)

    rename(graph)


def _store_codes(model: Any, operation: FileOperation, graph: FileGraph) -> None:
    onnx = importlib.import_module("onnx")
    name = kernel_of(operation, graph)
    place = next(
        (n for n, each in enumerate(model.graph.initializer) if each.name == name), None
    )
    if name is None or place is None:  # converted with an earlier operation
        return
    values = graph.constants[name]
    axis = _KERNEL_AXIS.get(operation.kind, values.ndim - 1)
    codes, scales = codes_of(values, axis)
    del model.graph.initializer[place]
    zeros = np.zeros(len(scales), np.int8)
    for suffix, array in (("codes", codes), ("scales", scales), ("zeros", zeros)):
        tensor = onnx.numpy_helper.from_array(array, f"{name}_{suffix}")
        model.graph.initializer.append(tensor)
    model.graph.node.insert(
        0,
        onnx.helper.make_node(
            "DequantizeLinear",
            [f"{name}_codes", f"{name}_scales", f"{name}_zeros"],
            [name],
            name=f"{name}_dequantize",
            axis=axis,
        ),
    )
