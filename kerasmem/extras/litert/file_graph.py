"""Operations and tensors of a LiteRT or ONNX file, and statistics of tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from kerasmem.compression.quantize.activations import with_zero
from kerasmem.errors import DataError

INPUT, OUTPUT = "INPUT", "OUTPUT"
"""Kinds of the two pseudo-operations for the inputs and the outputs of a file."""

_MOVES = {
    *("BROADCAST_TO", "CONCATENATION", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
    *("MAX_POOL_2D", "MIRROR_PAD", "PACK", "PAD", "PADV2", "RESHAPE", "SLICE"),
    *("RESIZE_NEAREST_NEIGHBOR", "SPACE_TO_DEPTH", "SPLIT", "SQUEEZE"),
    *("STRIDED_SLICE", "TRANSPOSE", "UNPACK", "DEPTH_TO_SPACE"),
    *("Concat", "Expand", "Flatten", "Gather", "MaxPool", "Pad", "Reshape", "Slice"),
    *("Split", "Squeeze", "Transpose", "Unsqueeze"),
}
"""Operations that only move values, so outputs have no new values."""


@dataclass(frozen=True)
class FileOperation:
    """One operation of a file.

    Args:
        kind: Operation type in the runtime, such as `"CONV_2D"` or `"Conv"`.
        inputs: Names of computed inputs.
        constants: Names of inputs stored in the file.
        outputs: Names of outputs.
        is_inner: Whether the operation is in the body of a loop or branch.
        has_floats: Whether the operation computes floats.
        label: Name of the node (ONNX only).
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
        """String that the rules of litert-quantizer match."""
        return "".join(f"{name};" for name in self.outputs or self.inputs)

    @property
    def name(self) -> str:
        """Name of the first output, which identifies the operation in the file."""
        names = self.outputs or self.inputs
        return names[0].partition(";")[0] if names else self.kind

    @property
    def is_lookup(self) -> bool:
        """Whether a constant input of the operation is a lookup table."""
        return self.kind in ("GATHER", "Gather")

    @property
    def moves(self) -> bool:
        """Whether the operation only moves values."""
        return self.kind in _MOVES


@dataclass
class FileGraph:
    """Parsed float file.

    Args:
        content: Bytes of the file, with unique tensor names.
        operations: Operations in order. LiteRT files also have `INPUT` and `OUTPUT`.
        constants: Stored float tensors by name.
        stays: Reason for each operation that must stay float.
        shapes: Shapes of tensors on a batch, by name. In loops, the steps are the first
            axis.
        has_codes: Whether weights are dequantized codes.
    """

    content: bytes
    operations: list[FileOperation]
    constants: dict[str, np.ndarray]
    stays: dict[FileOperation, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    has_codes: bool = False


@dataclass
class Seen:
    """Statistics of a tensor on samples."""

    shape: tuple[int, ...]
    least: float = 0.0
    most: float = 0.0
    squares: float = 0.0
    count: int = 0

    def add(self, name: str, values: np.ndarray) -> None:
        """Add the values of a batch."""
        if not np.isfinite(values).all():
            raise DataError(
                "Expected: finite samples for calibration. Received: NaN or infinity "
                f"in the tensor {name!r}. Next: check the samples."
            )
        self.least = min(self.least, float(values.min()))
        self.most = max(self.most, float(values.max()))
        self.count += values.size
        self.squares += float(np.square(values, dtype=np.float64).sum())

    @property
    def range(self) -> tuple[float, float]:
        """Minimum and maximum, extended to include zero."""
        return with_zero(self.least, self.most)

    def noise(self, low: float, high: float, bits: int = 8) -> float:
        """Return the relative power of the rounding noise for a range.

        This is the error power of uniform values, `step² / 12`, divided by the mean
        square of the values.
        """
        step = (high - low) / (2**bits - 1)
        power = self.squares / max(self.count, 1)
        return step * step / 12 / power if power else 0.0


ReadTensors = Callable[[Mapping[str, np.ndarray]], Iterable[tuple[str, np.ndarray]]]
"""Function from input arrays to pairs of name and float tensor."""


def observe(
    read: ReadTensors, batches: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, Seen]:
    """Collect statistics of each float tensor of a file on samples.

    Raises:
        DataError: If a tensor contains NaN or infinity.
    """
    by_name: dict[str, Seen] = {}
    for batch in batches:
        for name, values in read(batch):
            if values.size:
                by_name.setdefault(name, Seen(values.shape)).add(name, values)
    return by_name


def multiplications(operation: FileOperation, graph: FileGraph) -> int:
    """Return the multiplications of a matrix product per batch, or 0.

    Products in loops count once per step, or once if the shapes are unknown.
    """
    if operation.kind not in PRODUCTS:
        return 0
    shapes = graph.shapes
    inputs = [shapes[name] for name in operation.inputs if name in shapes]
    arrays = [graph.constants[n] for n in operation.constants if n in graph.constants]
    kernels = [array.shape for array in arrays if array.ndim > 1]
    if operation.kind in _RECURRENT:
        return prod(inputs[0][:2]) * sum(map(prod, kernels)) if inputs else 0
    output = next((shapes[n] for n in operation.outputs if n in shapes), None)
    if output is None:
        return prod(kernels[0]) if kernels and operation.is_inner else 0
    kernel = next(iter(kernels or inputs[1:]), None)
    if kernel is None:
        return 0
    return _of_product(operation.kind, output, kernel, inputs, is_stored=bool(kernels))


def _of_product(
    kind: str,
    output: tuple[int, ...],
    kernel: tuple[int, ...],
    inputs: Sequence[tuple[int, ...]],
    *,
    is_stored: bool,
) -> int:
    entries = prod(output)
    if kind in _PAIRS and not is_stored:
        return entries * inputs[0][-1]
    if kind == "DEPTHWISE_CONV_2D":
        return entries * prod(kernel[:-1])
    if kind in ("MatMul", "Gemm"):
        return entries * prod(kernel) // max(output[-1], 1)
    if kind in _TAKEN:
        return prod(inputs[0]) * prod(kernel) // kernel[_TAKEN[kind]] if inputs else 0
    return entries * prod(kernel[1:])


_PAIRS = ("BATCH_MATMUL", "FULLY_CONNECTED", "MatMul", "Gemm")
_RECURRENT = ("LSTM", "GRU", "RNN")
_TAKEN = {"TRANSPOSE_CONV": -1, "ConvTranspose": 0}

PRODUCTS = {
    *("BATCH_MATMUL", "CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"),
    *("TRANSPOSE_CONV", "Conv", "ConvTranspose", "Gemm", "MatMul", *_RECURRENT),
}
"""Operations that multiply matrices."""


def batch_length(read: ReadTensors, sample: Mapping[str, np.ndarray]) -> int:
    """Return the number of samples per batch, from 1 to 32.

    The limit is the size of all tensors of one sample, since all are kept.
    """
    size = sum(values.nbytes for _, values in read(sample))
    return min(max(_MOST_BYTES // max(size, 1), 1), 32)


_MOST_BYTES = 64 << 20
"""Maximum bytes of all tensors of a batch with more than one sample."""


def batches_of(
    names: Sequence[str], arrays: Sequence[np.ndarray], size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of samples as dicts by input name."""
    for start in range(0, len(arrays[0]), size):
        parts = (array[start : start + size] for array in arrays)
        yield dict(zip(names, parts, strict=True))


INT8, INT16, FLOAT = "int8", "int16x8", "float"
DYNAMIC, DYNAMIC_INT4 = "dynamic int8", "dynamic int4"
WEIGHT_ONLY = "weight-only int8"
"""Precisions of an operation.

`INT8` and `INT16`: int8 weights, and 8-bit or 16-bit activations with fixed ranges.
`DYNAMIC` and `DYNAMIC_INT4`: 8-bit or 4-bit weights, and inputs rounded to int8 per row
at run time. `WEIGHT_ONLY`: int8 weights that are dequantized at run time.
"""

INTEGER_INPUTS = {INT8, INT16, DYNAMIC, DYNAMIC_INT4}
"""Precisions whose matrix products use integers."""

Ranges = Mapping[str, tuple[float, float]]
"""Minimum and maximum by tensor name."""

Precisions = Mapping[FileOperation, str]
"""Precision by operation. Other operations stay float."""


def kernel_of(operation: FileOperation, graph: FileGraph) -> str | None:
    """Return the name of the stored kernel or table of an operation."""
    floats = (name for name in operation.constants if name in graph.constants)
    return next((name for name in floats if graph.constants[name].ndim > 1), None)
