"""Writing a LiteRT file, tensor by tensor and operation by operation."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.quantize.static.base import Codes
from kerasmem.exporting.interpreters import litert_module

VERSIONS = {
    "ADD": 2,
    "AVERAGE_POOL_2D": 2,
    "CONCATENATION": 2,
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "HARD_SWISH": 1,
    "LEAKY_RELU": 1,
    "LOGISTIC": 2,
    "MAX_POOL_2D": 2,
    "MEAN": 2,
    "MUL": 2,
    "PAD": 2,
    "RELU": 2,
    "RELU6": 2,
    "RESHAPE": 1,
    "SOFTMAX": 2,
    "TANH": 2,
}
"""The version of every operation that is the first to take int8, by its name."""

_FORMAT, _MARK = 3, b"TFL3"


class Writer:
    """One graph in the making."""

    def __init__(self) -> None:
        self._schema = litert_module("schema_py_generated")
        self._buffers = [self._schema.BufferT()]
        self._tensors: list[Any] = []
        self._operations: list[Any] = []
        self._codes: list[str] = []

    def tensor(
        self,
        name: str,
        shape: Sequence[int | None],
        *,
        values: np.ndarray | None = None,
        scales: Sequence[float] | np.ndarray = (),
        zero_point: int = 0,
        axis: int = 0,
    ) -> int:
        """Return the number of a new tensor of int8, or of the dtype of its values.

        Args:
            name: of the tensor.
            shape: None stands for a length that is open.
            values: what it holds, if that is known; int8 or int32.
            scales: one, or one for each entry along `axis`; none for plain integers.
            zero_point: the code of zero.
            axis: the axis that the scales lie along.
        """
        made = self._schema.TensorT()
        made.name, made.hasRank = name, True
        made.shape = [1 if n is None else n for n in shape]
        if None in shape:
            made.shapeSignature = [-1 if n is None else n for n in shape]
        dtype = "INT8" if values is None else values.dtype.name.upper()
        made.type = getattr(self._schema.TensorType, dtype)
        made.buffer = 0 if values is None else self._buffer(values)
        if len(scales):
            made.quantization = self._schema.QuantizationParametersT()
            made.quantization.scale = np.array(scales, np.float32)
            made.quantization.zeroPoint = np.full(len(scales), zero_point, np.int64)
            made.quantization.quantizedDimension = axis
        self._tensors.append(made)
        return len(self._tensors) - 1

    def codes(self, name: str, shape: Sequence[int | None], codes: Codes) -> int:
        """Return the number of a new tensor of codes."""
        scales = [codes.scale]
        return self.tensor(name, shape, scales=scales, zero_point=codes.zero_point)

    def operation(
        self,
        name: str,
        inputs: Sequence[int],
        output: int,
        kind: str | None = None,
        **options: Any,
    ) -> None:
        """Add an operation.

        Args:
            name: a key of `VERSIONS`.
            inputs: numbers of tensors.
            output: number of a tensor.
            kind: name of its options in LiteRT's schema, None if it has none.
            options: what differs from 0 in them.
        """
        if name not in self._codes:
            self._codes.append(name)
        made = self._schema.OperatorT()
        made.opcodeIndex = self._codes.index(name)
        made.inputs, made.outputs = list(inputs), [output]
        if kind is not None:
            made.builtinOptionsType = getattr(self._schema.BuiltinOptions, kind)
            made.builtinOptions = getattr(self._schema, f"{kind}T")(**options)
        self._operations.append(made)

    def content(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bytes:
        """Return the bytes of the file.

        Args:
            inputs: numbers of tensors by the names that the file's signature has.
            outputs: likewise.
        """
        schema = self._schema
        graph, model = schema.SubGraphT(), schema.ModelT()
        graph.name = "main"
        graph.tensors, graph.operators = self._tensors, self._operations
        graph.inputs, graph.outputs = list(inputs.values()), list(outputs.values())
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = "serve", 0
        signature.inputs, signature.outputs = map(self._names, (inputs, outputs))
        model.version, model.description = _FORMAT, "kerasmem"
        model.subgraphs, model.buffers = [graph], self._buffers
        model.operatorCodes = [self._operator_code(name) for name in self._codes]
        model.signatureDefs = [signature]
        builder = importlib.import_module("flatbuffers").Builder(1024)
        builder.Finish(model.Pack(builder), _MARK)
        return bytes(builder.Output())

    def _buffer(self, values: np.ndarray) -> int:
        made = self._schema.BufferT()
        little_endian = values.astype(values.dtype.newbyteorder("<"))
        made.data = np.frombuffer(little_endian.tobytes(), np.uint8)
        self._buffers.append(made)
        return len(self._buffers) - 1

    def _operator_code(self, name: str) -> Any:
        made = self._schema.OperatorCodeT()
        made.builtinCode = getattr(self._schema.BuiltinOperator, name)
        made.deprecatedBuiltinCode = min(made.builtinCode, 127)
        made.version = VERSIONS[name]
        return made

    def _names(self, tensors: Mapping[str, int]) -> list[Any]:
        pairs = []
        for name, number in tensors.items():
            made = self._schema.TensorMapT()
            made.name, made.tensorIndex = name, number
            pairs.append(made)
        return pairs
