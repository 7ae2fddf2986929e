"""The operations and tensors of a LiteRT or ONNX file, and what tensors hold."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from kerasmem.compression.quantize.activations import Histogram, with_zero
from kerasmem.errors import DataError

INPUT, OUTPUT = "INPUT", "OUTPUT"
"""Kinds of the two entries that stand for the inputs and the outputs of a file."""

_MOVES = {
    *("BROADCAST_TO", "CONCATENATION", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
    *("MAX_POOL_2D", "MIRROR_PAD", "PACK", "PAD", "PADV2", "RESHAPE", "SLICE"),
    *("RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_DEPTH", "SPLIT", "SQUEEZE"),
    *("STRIDED_SLICE", "TRANSPOSE", "UNPACK", "DEPTH_TO_SPACE"),
    *("Concat", "Expand", "Flatten", "Gather", "MaxPool", "Pad", "Reshape", "Slice"),
    *("Split", "Squeeze", "Transpose", "Unsqueeze"),
}
"""Operations whose outputs have no values that their inputs have not."""


@dataclass(frozen=True)
class FileOperation:
    """One operation of a file.

    Args:
        kind: its name in the runtime, such as `"CONV_2D"` or `"Conv"`.
        inputs: names of its inputs that are computed.
        constants: names of its inputs that are stored in the file.
        outputs: names of its outputs.
        is_inner: whether it is in the body of a loop or branch.
        has_floats: whether it computes floats.
        label: its own name, which ONNX has.
    """

    kind: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    is_inner: bool = False
    has_floats: bool = True
    label: str = ""

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
    def is_lookup(self) -> bool:
        """Whether it reads rows of a table, if it has a constant."""
        return self.kind in ("GATHER", "Gather")

    @property
    def moves(self) -> bool:
        """Whether it only moves values."""
        return self.kind in _MOVES


@dataclass
class FileGraph:
    """A float file, read.

    Args:
        content: the bytes of the file; names of tensors are unique.
        operations: in order; in LiteRT with an `INPUT` and an `OUTPUT`.
        constants: the stored float tensors, by name.
        stays: reasons of operations that have to stay float.
    """

    content: bytes
    operations: list[FileOperation]
    constants: dict[str, np.ndarray]
    stays: dict[FileOperation, str] = field(default_factory=dict)


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

    def noise(self, low: float, high: float, bits: int = 8) -> float:
        """Return the noise of rounding in a range as a share of the signal.

        It is the power of the rounding error of evenly spread values, `step² / 12`,
        divided by the mean square of the values.
        """
        step = (high - low) / (2**bits - 1)
        power = self.squares / max(self.histogram.total, 1)
        return step * step / 12 / power if power else 0.0


ReadTensors = Callable[[Mapping[str, np.ndarray]], Iterable[tuple[str, np.ndarray]]]
"""Takes an array for each input; returns the float tensors with their names."""


def observe(
    read: ReadTensors, batches: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, Seen]:
    """Return what every float tensor of a file holds on samples, by its name.

    Args:
        read: reads the tensors of the file.
        batches: an array for each input, by its name.

    Raises:
        DataError: if a tensor holds NaN or infinity.
    """
    by_name: dict[str, Seen] = {}
    for batch in batches:
        for name, values in read(batch):
            if values.size:
                by_name.setdefault(name, Seen(values.shape)).add(name, values)
    return by_name


def multiplications(
    operation: FileOperation, graph: FileGraph, seen: Mapping[str, Seen]
) -> int:
    """Return the multiplications of a product, per batch; 0 for other operations."""
    name = kernel_of(operation, graph)
    kernel = None if name is None else graph.constants[name]
    shapes = [seen[name].shape for name in operation.outputs if name in seen]
    entries = prod(shapes[0]) if shapes else 0
    if operation.is_inner and kernel is not None:
        return kernel.size
    is_pair = kernel is None and operation.kind in ("BATCH_MATMUL", "MatMul")
    if is_pair and operation.inputs[0] in seen:
        return entries * seen[operation.inputs[0]].shape[-1]
    if kernel is None or operation.kind not in PRODUCTS:
        return 0
    if operation.kind == "DEPTHWISE_CONV_2D":
        return entries * prod(kernel.shape[:-1])
    if operation.kind in ("MatMul", "Gemm"):
        return entries * kernel.size // max(shapes[0][-1], 1) if shapes else 0
    if operation.kind in ("TRANSPOSE_CONV", "ConvTranspose"):
        inputs = [seen[name].shape for name in operation.inputs if name in seen]
        return (
            prod(inputs[0]) * kernel.size // kernel.shape[_TAKEN[operation.kind]]
            if inputs
            else 0
        )
    return entries * prod(kernel.shape[1:])


_TAKEN = {"TRANSPOSE_CONV": -1, "ConvTranspose": 0}

PRODUCTS = {
    *("BATCH_MATMUL", "CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"),
    *("TRANSPOSE_CONV", "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM"),
}
"""Operations that multiply matrices."""


def batch_length(read: ReadTensors, sample: Mapping[str, np.ndarray]) -> int:
    """Return how many samples to run at a time, from 1 to 32.

    Args:
        read: reads the tensors of a file, which are all kept.
        sample: one sample, by the names of the inputs.
    """
    size = sum(values.nbytes for _, values in read(sample))
    return min(max(_MOST_BYTES // max(size, 1), 1), 32)


_MOST_BYTES = 64 << 20
"""Tensors of a batch may have so many bytes, if one sample has not more."""


def batches_of(
    names: Sequence[str], arrays: Sequence[np.ndarray], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield samples batch by batch, by the names of the inputs."""
    for start in range(0, len(arrays[0]), size):
        parts = (array[start : start + size] for array in arrays)
        yield dict(zip(names, parts, strict=True))


INT8, INT16, FLOAT = "int8", "int16x8", "float"
DYNAMIC, DYNAMIC_INT4 = "dynamic int8", "dynamic int4"
WEIGHT_ONLY = "weight-only int8"
"""Precisions of an operation.

`INT8` and `INT16`: activations of 8 or 16 bits in fixed ranges, int8 weights. `DYNAMIC`
and `DYNAMIC_INT4`: weights of 8 or 4 bits, and inputs that are rounded to int8 row by
row at run time. `WEIGHT_ONLY`: int8 weights that become float at run time.
"""

INTEGER_INPUTS = {INT8, INT16, DYNAMIC, DYNAMIC_INT4}
"""Precisions whose products multiply integers."""

Ranges = Mapping[str, tuple[float, float]]
"""Of tensors, by name."""

Precisions = Mapping[FileOperation, str]
"""Of operations; those that are missing stay float."""


def kernel_of(operation: FileOperation, graph: FileGraph) -> str | None:
    """Return the name of the stored weight that an operation multiplies or looks up."""
    floats = (name for name in operation.constants if name in graph.constants)
    return next((name for name in floats if graph.constants[name].ndim > 1), None)
