"""Writes quantized LiteRT files with litert-quantizer."""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from kerasmem.backends.converting import quiet
from kerasmem.errors import ModelError, first_line
from kerasmem.extras.litert.file_graph import (
    DYNAMIC,
    DYNAMIC_INT4,
    FLOAT,
    INPUT,
    INT8,
    INT16,
    OUTPUT,
    PRODUCTS,
    WEIGHT_ONLY,
    FileGraph,
    FileOperation,
    Precisions,
    Ranges,
    ReadTensors,
    kernel_of,
)
from kerasmem.extras.litert.interpreters import LiteRT, litert_module, module_of_extra
from kerasmem.extras.litert.litert_loops import builtin_of, kind_of, shapes_in_loops

__all__ = ["LitertWriter", "read_graph", "shapes_in_loops", "supports", "tensor_reader"]

_BLOCKS = (128, 64, 32)


def read_graph(content: bytes) -> FileGraph:
    """Read the operations of a float LiteRT file."""
    schema = litert_module("schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    content = _with_unique_names(model, content)
    kinds = {
        number: name
        for name, number in vars(schema.BuiltinOperator).items()
        if isinstance(number, int)
    }
    operations, constants = list[FileOperation](), dict[str, np.ndarray]()
    for place, graph in enumerate(model.subgraphs):
        names = [tensor.name.decode() for tensor in graph.tensors]
        constant_numbers = {
            number
            for number, tensor in enumerate(graph.tensors)
            if model.buffers[tensor.buffer].data is not None
        }
        for number in constant_numbers:
            tensor = graph.tensors[number]
            if tensor.type == schema.TensorType.FLOAT32:
                data = np.asarray(model.buffers[tensor.buffer].data, np.uint8)
                constants[names[number]] = data.view("<f4").reshape(tensor.shape)
        if place == 0:
            inputs = tuple(names[n] for n in graph.inputs)
            types = {graph.tensors[n].type for n in graph.inputs}
            has_floats = schema.TensorType.FLOAT32 in types
            operations.append(
                FileOperation(INPUT, (), (), inputs, has_floats=has_floats)
            )
        for operator in graph.operators:
            input_numbers = [n for n in operator.inputs if n >= 0]
            operations.append(
                FileOperation(
                    kinds[kind_of(model, operator)],
                    tuple(names[n] for n in input_numbers if n not in constant_numbers),
                    tuple(names[n] for n in input_numbers if n in constant_numbers),
                    tuple(names[n] for n in operator.outputs),
                    is_inner=place > 0,
                    has_floats=any(
                        graph.tensors[n].type == schema.TensorType.FLOAT32
                        for n in operator.outputs
                    ),
                )
            )
    main = model.subgraphs[0]
    ends = tuple(main.tensors[n].name.decode() for n in main.outputs)
    operations.append(FileOperation(OUTPUT, ends, (), ()))
    return FileGraph(content, operations, constants)


def _with_unique_names(model: Any, content: bytes) -> bytes:
    names, is_new = set[bytes](), False
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            name, count = tensor.name, 0
            while name in names:
                count += 1
                name = b"%s_%d" % (tensor.name, count)
            is_new = is_new or name != tensor.name
            tensor.name = name
            names.add(name)
    return _packed(model, content) if is_new else content


def tensor_reader(content: bytes) -> ReadTensors:
    """Return a function that reads the float tensors of a file, except in loops."""
    file = LiteRT(content, keeps_tensors=True)

    def read(batch: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        file(dict(batch))
        return file.tensors()

    return read


def quantizer_module(name: str) -> Any:
    """Import a module of `litert_quantizer`."""
    return module_of_extra(
        f"litert_quantizer.{name}",
        "litert-quantizer writes int8 and int4 files. Expected: the package is "
        "installed",
    )


@cache
def supports(kind: str, precision: str) -> bool:
    """Return whether an operation type supports a precision."""
    types = quantizer_module("qtyping")
    manager = quantizer_module("recipe_manager").RecipeManager()
    name = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}.get(kind, kind)
    if precision == FLOAT:
        return True
    if kind in (INPUT, OUTPUT) and precision == INT16:
        return False  # callers pass int8 or floats
    if name not in types.TFLOperationName.__members__:
        return False
    try:
        _Rule(".*", types.TFLOperationName[name]).add(manager, precision)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class _Rule:
    """A rule of litert-quantizer.

    `block` is the number of weights per scale, or 0 for one scale per channel.
    """

    pattern: str
    kind: Any
    block: int = 0

    def add(self, rules: Any, precision: str) -> None:
        """Add the rule to a recipe."""
        types = quantizer_module("qtyping")
        grain = f"BLOCKWISE_{self.block}" if self.block else "CHANNELWISE"
        bits = _BITS[precision]
        if precision in (INT8, INT16):
            activations = 8 if precision == INT8 else 16
            rules.add_static_config(self.pattern, self.kind, activations, bits)
        elif precision == WEIGHT_ONLY:
            rules.add_weight_only_config(self.pattern, self.kind, bits)
        elif precision == FLOAT:
            name = quantizer_module("algorithm_manager").AlgorithmName.NO_QUANTIZE
            rules.update_quantization_recipe(self.pattern, self.kind, None, name)
        else:
            grain = types.QuantGranularity[grain]
            rules.add_dynamic_config(self.pattern, self.kind, bits, grain)


_BITS = {INT8: 8, INT16: 8, DYNAMIC: 8, WEIGHT_ONLY: 8, DYNAMIC_INT4: 4, FLOAT: 32}
"""Bits of the weights by precision."""


class LitertWriter:
    """Rewrites a float file with a precision for each operation.

    If the weights are dequantized int8 or int4 codes, the file contains these codes.
    """

    def __init__(self, graph: FileGraph, ranges: Ranges) -> None:
        self._graph = graph
        self._ranges = {
            name: {
                "min": np.full((1,) * len(graph.shapes[name]), low, np.float32),
                "max": np.full((1,) * len(graph.shapes[name]), high, np.float32),
            }
            for name, (low, high) in ranges.items()
        }
        self.steps: dict[FileOperation, CodeSteps] = {}
        for operation in graph.operations if graph.has_codes else ():
            steps = _code_steps(operation, graph)
            if steps is not None:
                self.steps[operation] = steps

    def write(self, precisions: Precisions) -> bytes:
        """Write the file. Operations without a precision stay float."""
        rules, ends = self._rules(precisions)
        if not rules:
            return self._graph.content
        quantizer = quantizer_module("quantizer").Quantizer(self._graph.content)
        for rule, precision in rules:
            rule.add(quantizer, precision)
        with quiet(), warnings.catch_warnings():  # hides progress and LiteRT's advice
            warnings.simplefilter("ignore", UserWarning)
            try:
                result = quantizer.quantize(
                    ends, enable_progress_bar=False, enable_progress_report=False
                )
            except Exception as error:  # the errors have no common base class
                raise ModelError(
                    "litert-quantizer cannot write the file: "
                    f"{first_line(str(error))[:300]}"
                ) from error
        return _requantized_through_floats(bytes(result.quantized_model))

    def _rules(
        self, precisions: Precisions
    ) -> tuple[list[tuple[_Rule, str]], dict[str, Any]]:
        kinds = quantizer_module("qtyping").TFLOperationName
        scopes, ends = defaultdict(list), dict(self._ranges)
        for name in self._of_int16_alone(precisions):
            # With 16 bits, one bit can cover values beyond the samples' range.
            ends[name] = {end: _doubled(value) for end, value in ends[name].items()}
        last = []
        for operation in self._graph.operations:
            precision = precisions.get(operation, FLOAT)
            scope = re.escape(operation.scope)
            if operation.kind == OUTPUT:
                # The scope equals that of the producing operation, so the rule must
                # come later.
                last = [(_Rule(f"^{scope}$", kinds.OUTPUT), precision)]
            elif precision != FLOAT:
                scopes[precision, self._block(operation, precision)].append(scope)
                ends |= self._ends_of_weight(operation, precision)
        rules = [
            (_Rule(f"^(?:{'|'.join(names)})$", kinds.ALL_SUPPORTED, block), precision)
            for (precision, block), names in scopes.items()
        ]
        return rules and rules + last, ends

    def _ends_of_weight(
        self, operation: FileOperation, precision: str
    ) -> dict[str, Any]:
        steps = self.steps.get(operation)
        if steps is None or steps.bits != _BITS[precision]:
            return {}
        most = steps.steps * (2 ** (steps.bits - 1) - 1)
        return {steps.weight: {"min": -most, "max": most}}

    def _of_int16_alone(self, precisions: Precisions) -> set[str]:
        names: dict[str, set[str]] = {INT8: set(), INT16: set()}
        for operation, precision in precisions.items():
            if precision in names:
                names[precision].update(operation.inputs, operation.outputs)
        return (names[INT16] - names[INT8]) & self._ranges.keys()

    def _block(self, operation: FileOperation, precision: str) -> int:
        kernel, steps = kernel_of(operation, self._graph), self.steps.get(operation)
        if precision != DYNAMIC_INT4 or operation.kind != "FULLY_CONNECTED":
            return 0
        if steps is not None or kernel is None:
            return 0 if steps is None else steps.block
        width = self._graph.constants[kernel].shape[1]
        return next((n for n in _BLOCKS if width % n == 0), 0)


def _requantized_through_floats(content: bytes) -> bytes:
    """Split each change of an int8 scale into DEQUANTIZE and QUANTIZE.

    The runtime multiplies codes by a ratio of 8 bits, which is wrong by up to a step.
    """
    schema = litert_module("schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    kinds, is_new = schema.BuiltinOperator, False
    for graph in model.subgraphs:
        operators = []
        for operator in graph.operators:
            tensors = [graph.tensors[n] for n in (*operator.inputs, *operator.outputs)]
            is_rescaling = kind_of(model, operator) == kinds.QUANTIZE and all(
                tensor.type == schema.TensorType.INT8 for tensor in tensors
            )
            if is_rescaling:
                is_new = True
                floats = copy(tensors[1])
                floats.name, floats.buffer = floats.name + b"_floats", 0
                floats.type, floats.quantization = schema.TensorType.FLOAT32, None
                graph.tensors.append(floats)
                first = schema.OperatorT()
                first.opcodeIndex = _opcode(model, kinds.DEQUANTIZE, schema)
                first.inputs = operator.inputs
                first.outputs = operator.inputs = [len(graph.tensors) - 1]
                operators.append(first)
            operators.append(operator)
        graph.operators = operators
    return _packed(model, content) if is_new else content


def _opcode(model: Any, kind: int, schema: Any) -> int:
    """Return the index of an operation type without options in a file."""
    for number, code in enumerate(model.operatorCodes):
        if builtin_of(code) == kind:
            return number
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = kind
    code.version = 2
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _packed(model: Any, content: bytes) -> bytes:
    import flatbuffers

    # Files of 256 KiB and more have their constants behind the model.
    for buffer in model.buffers:
        if buffer.offset > 1:
            end = buffer.offset + buffer.size
            buffer.data = np.frombuffer(content[buffer.offset : end], np.uint8)
            buffer.offset = buffer.size = 0
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _doubled(end: np.ndarray) -> np.ndarray:
    most = np.finfo(np.float32).max
    return np.clip(2.0 * end.astype(np.float64), -most, most).astype(np.float32)


@dataclass(frozen=True)
class CodeSteps:
    """Scales of a weight whose values are integer multiples of them.

    Args:
        weight: Name of the weight.
        bits: 8 or 4.
        block: Entries of a row per scale, or 0 for one scale per channel.
        steps: Scales, with the weight's number of axes.
    """

    weight: str
    bits: int
    block: int
    steps: np.ndarray


_CODE_TOLERANCE = 0.01


def _code_steps(operation: FileOperation, graph: FileGraph) -> CodeSteps | None:
    name = kernel_of(operation, graph)
    if name is None or operation.kind not in PRODUCTS:
        return None
    values = graph.constants[name]
    axis = 3 if operation.kind == "DEPTHWISE_CONV_2D" else 0
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    shape = [n if place == axis else 1 for place, n in enumerate(values.shape)]
    for bits in (4, 8):
        steps = steps_of(rows, 2 ** (bits - 1) - 1)
        if steps is not None:
            return CodeSteps(name, bits, 0, steps.reshape(shape))
    if operation.kind != "FULLY_CONNECTED":
        return None
    for block in _BLOCKS:
        if values.shape[1] % block == 0:
            steps = steps_of(values.reshape(-1, block), 7)
            if steps is not None:
                return CodeSteps(name, 4, block, steps.reshape(len(values), -1))
    return None


def steps_of(rows: np.ndarray, limit: int) -> np.ndarray | None:
    """Return the scale of each row whose values are integer multiples of the scale.

    `rows` is a float32 array of shape `(rows, entries)`.

    Returns:
        Float32 array of shape `(rows,)`, or None if a row has no scale.

    Example:
        >>> steps_of(np.array([[0.5, -1.5, 3.5]], "float32"), 7)
        array([0.5], dtype=float32)
        >>> steps_of(np.array([[0.5, -1.3, 3.5]], "float32"), 7) is None
        True
    """
    largest = np.abs(rows).max(axis=1)
    steps = np.where(largest == 0, np.float32(1), np.float32(0))
    # The usual scale comes first: the largest entry has the largest code.
    for most in (limit, *range(1, limit)):
        open_rows = np.flatnonzero(steps == 0)
        if not len(open_rows):
            return steps
        size = largest[open_rows] / np.float32(most)
        multiples = rows[open_rows] / size[:, None]
        fits = np.abs(multiples - np.rint(multiples)).max(axis=1) < _CODE_TOLERANCE
        steps[open_rows[fits]] = size[fits]
    return steps if steps.all() else None
