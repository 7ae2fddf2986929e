"""The operations and tensors of a LiteRT file, and what the tensors hold on samples."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from kerasmem.compression.quantize.activations import Histogram, with_zero
from kerasmem.errors import DataError
from kerasmem.exporting.interpreters import LiteRT, litert_module

INPUT, OUTPUT = "INPUT", "OUTPUT"
"""Kinds of the two entries that stand for the inputs and the outputs of a file."""

_MOVES = {
    *("BROADCAST_TO", "CONCATENATION", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
    *("MAX_POOL_2D", "MIRROR_PAD", "PACK", "PAD", "PADV2", "RESHAPE", "SLICE"),
    *("RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_DEPTH", "SPLIT", "SQUEEZE"),
    *("STRIDED_SLICE", "TRANSPOSE", "UNPACK", "DEPTH_TO_SPACE"),
}
"""Operations whose outputs have no values that their inputs have not."""


@dataclass(frozen=True)
class Operation:
    """One operation of a file.

    Args:
        kind: its name in LiteRT, such as `"CONV_2D"`.
        inputs: names of its inputs that are computed.
        constants: names of its inputs that are stored in the file.
        outputs: names of its outputs.
        is_inner: whether it is in the body of a loop or branch.
        has_floats: whether it reads or writes computed floats.
    """

    kind: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    is_inner: bool = False
    has_floats: bool = True

    @property
    def scope(self) -> str:
        """What the rules of litert-quantizer are matched with."""
        return "".join(f"{name};" for name in self.outputs or self.inputs)

    @property
    def name(self) -> str:
        """The name of its first output, by which the file's layers can be found."""
        names = self.outputs or self.inputs
        return names[0].partition(";")[0] if names else self.kind

    @property
    def moves(self) -> bool:
        """Whether it only moves values."""
        return self.kind in _MOVES


@dataclass
class Graph:
    """A LiteRT file, read.

    Args:
        content: the bytes of the file; names of tensors are unique.
        operations: in order, with an `INPUT` first and an `OUTPUT` last.
        constants: the stored float tensors, by name.
    """

    content: bytes
    operations: list[Operation]
    constants: dict[str, np.ndarray]


def read_graph(content: bytes) -> Graph:
    """Return the operations of a float LiteRT file.

    Raises:
        ConfigError: if `ai-edge-litert` is not installed.
    """
    schema = litert_module("schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    content = _with_unique_names(model, content)
    kinds = {
        number: name
        for name, number in vars(schema.BuiltinOperator).items()
        if isinstance(number, int)
    }
    operations, constants = list[Operation](), dict[str, np.ndarray]()
    for place, graph in enumerate(model.subgraphs):
        names = [tensor.name.decode() for tensor in graph.tensors]
        stored = {
            number
            for number, tensor in enumerate(graph.tensors)
            if model.buffers[tensor.buffer].data is not None
        }
        for number in stored:
            tensor = graph.tensors[number]
            if tensor.type == schema.TensorType.FLOAT32:
                data = np.asarray(model.buffers[tensor.buffer].data, np.uint8)
                constants[names[number]] = data.view("<f4").reshape(tensor.shape)
        if place == 0:
            inputs = tuple(names[n] for n in graph.inputs)
            operations.append(Operation(INPUT, (), (), inputs))
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex]
            given = [n for n in operator.inputs if n >= 0]
            operations.append(
                Operation(
                    kinds[max(code.builtinCode, code.deprecatedBuiltinCode)],
                    tuple(names[n] for n in given if n not in stored),
                    tuple(names[n] for n in given if n in stored),
                    tuple(names[n] for n in operator.outputs),
                    is_inner=place > 0,
                    has_floats=any(
                        graph.tensors[n].type == schema.TensorType.FLOAT32
                        for n in (*given, *operator.outputs)
                        if n not in stored
                    ),
                )
            )
    main = model.subgraphs[0]
    ends = tuple(main.tensors[n].name.decode() for n in main.outputs)
    operations.append(Operation(OUTPUT, ends, (), ()))
    return Graph(content, operations, constants)


def _with_unique_names(model: Any, content: bytes) -> bytes:
    """Return the file with names that differ; those of `model` are changed likewise."""
    seen, changed = set[bytes](), False
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            name, count = tensor.name, 0
            while name in seen:
                count += 1
                name = b"%s_%d" % (tensor.name, count)
            changed = changed or name != tensor.name
            tensor.name = name
            seen.add(name)
    if not changed:
        return content
    import flatbuffers

    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@dataclass
class Seen:
    """What a tensor holds on samples.

    Args:
        shape: of one batch.
        histogram: of all values.
        squares: sum of their squares.
    """

    shape: tuple[int, ...]
    histogram: Histogram = field(default_factory=Histogram)
    squares: float = 0.0

    def add(self, name: str, values: np.ndarray) -> None:
        """Count the values of a batch.

        Raises:
            DataError: if they are not finite.
        """
        if not np.isfinite(values).all():
            raise DataError(
                "A file is calibrated on finite numbers. Received: NaN or infinity in "
                f"the tensor {name!r}. Next: check the samples."
            )
        self.histogram.add(values)
        self.squares += float(np.square(values, dtype=np.float64).sum())

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value, with zero between them."""
        return with_zero(self.histogram.least, self.histogram.most)

    def noise(self, low: float, high: float) -> float:
        """Return the noise of 8-bit rounding in a range as a share of the signal.

        It is the power of the rounding error of evenly spread values, `step² / 12`,
        divided by the mean square of the values.
        """
        step = (high - low) / 255
        power = self.squares / max(self.histogram.total, 1)
        return step * step / 12 / power if power else 0.0


def observe(content: bytes, batches: Iterable[Mapping[str, Any]]) -> dict[str, Seen]:
    """Return what every float tensor of a file holds on samples, by its name.

    Tensors within loops are not seen, and neither are those without values.

    Args:
        content: the bytes of a float file.
        batches: an array for each input, by its name.

    Raises:
        DataError: if a tensor holds NaN or infinity.
    """
    file = LiteRT(content, kernels="builtin", keeps_tensors=True)
    seen: dict[str, Seen] = {}
    for batch in batches:
        file(dict(batch))
        for name, values in file.tensors():
            if values.size:
                one = seen.setdefault(name, Seen(values.shape))
                one.add(name, values)
    return seen


def multiplications(
    operation: Operation, graph: Graph, seen: Mapping[str, Seen]
) -> int:
    """Return the multiplications of a product, per batch; 0 for other operations."""
    kernels = [graph.constants[n] for n in operation.constants if n in graph.constants]
    kernel = next((k for k in kernels if k.ndim > 1), None)
    known = [seen[name].shape for name in operation.outputs if name in seen]
    made = prod(known[0]) if known else 0
    if operation.is_inner and kernel is not None:
        return kernel.size
    if operation.kind == "BATCH_MATMUL" and operation.inputs[0] in seen:
        return made * seen[operation.inputs[0]].shape[-1]
    if kernel is None or operation.kind not in PRODUCTS:
        return 0
    if operation.kind == "DEPTHWISE_CONV_2D":
        return made * prod(kernel.shape[:-1])
    if operation.kind == "TRANSPOSE_CONV":
        taken = [seen[name].shape for name in operation.inputs if name in seen]
        return prod(taken[0]) * prod(kernel.shape[:-1]) if taken else 0
    return made * prod(kernel.shape[1:])


PRODUCTS = {
    *("BATCH_MATMUL", "CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"),
    *("TRANSPOSE_CONV",),
}
"""Operations that multiply matrices."""


def batches_of(
    names: Sequence[str], arrays: Sequence[np.ndarray], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield samples batch by batch, by the names of the inputs."""
    for start in range(0, len(arrays[0]), size):
        parts = (array[start : start + size] for array in arrays)
        yield dict(zip(names, parts, strict=True))
