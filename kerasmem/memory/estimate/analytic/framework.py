"""Execution rules of each backend, and scratch space of convolutions.

cuDNN has several algorithms for a convolution. A framework times them in the first step
and keeps the fastest, whose scratch space is unknown in advance. The lower bound is the
transposed operands for tensor cores. The upper bound is both operands in the frequency
domain.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kerasmem.memory.estimate import scratch as space
from kerasmem.memory.program import Op, ProgramTensor, as_ready, as_written
from kerasmem.units import MIB

_TENSOR_CORE_LAYOUT_IS_LAST = 4
"""From this width (float32), frameworks run convolutions with channels first, whereas
tensor core kernels need channels last."""
_LARGEST_TRANSFORM = 256
_TILE = 32
_TORCH_WORKSPACE = 32 * MIB
"""cuBLAS workspace that torch requests on GPUs with compute capability 9."""
_PRODUCT_WORKSPACE = 4 * MIB
"""Workspace of each cuBLAS call in XLA plans, for any matrix size. The block of a step
contains one workspace at its peak."""


class Scratch(NamedTuple):
    """Scratch space of a convolution, in bytes.

    Args:
        forward: Scratch space of the forward pass.
        to_kernel: Scratch space of the kernel gradient.
        to_input: Scratch space of the input gradient.
        trial: Maximum scratch space of autotuning in the first step.
        at_once: Whether both gradients are computed at the same time.
    """

    forward: int = 0
    to_kernel: int = 0
    to_input: int = 0
    trial: int = 0
    at_once: bool = False


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Execution rules of a backend.

    Args:
        kernels: `"tensorflow"`, `"xla"` or `"torch"`. Selects the layer handlers.
        ordered: Sorts operations into execution order, given the tensors needed
            afterwards, and fuses them if the backend does.
        updates: `"each"` to update a variable once its gradient exists, `"merged"` for
            the same in one operation, or `"lists"` for all variables at the end.
        in_place: Whether an output may reuse the memory of an input after its last use.
        keeps_outputs: Whether layer outputs are kept until the end of the forward pass,
            as in Keras's own loop over the layers.
        keeps_gradients: Whether gradients are kept until the next step.
        one_block: Whether the whole step is one allocation.
        whole_chunks: Whether the allocator may leave a chunk unsplit.
        rounding: Block sizes are multiples of this number of bytes.
        waste: Average fraction of memory allocated beyond the rounded size.
        scratch: Returns the scratch space of a convolution.
        product_scratch: Scratch space of matrix products, shared by a whole step.
        held_scratch: Bytes that the backend keeps for matrix products per thread. There
            is one thread each for the forward and the backward pass.
        fused_recurrence: Whether an LSTM is one operation.
        sparse: Whether the gradient of an embedding contains only the rows read.
        keeps_scores: Whether the gradient of softmax reads the scores, not the result.
        keeps_floats: Whether dequantized kernels, including those for gradients, exist
            during the whole step.
        argmax_copies: Scratch space of `keras.ops.argmax`, relative to its input.
        doubt: Downward and upward relative error of the bytes of a step.
    """

    kernels: str = "tensorflow"
    ordered: Callable[[Sequence[Op], Sequence[ProgramTensor]], list[Op]] = as_written
    updates: str = "each"
    in_place: bool = True
    keeps_outputs: bool = False
    keeps_gradients: bool = False
    one_block: bool = False
    whole_chunks: bool = True
    rounding: int = 256
    waste: float = 0.0
    scratch: Callable[[ProgramTensor, ProgramTensor, ProgramTensor], Scratch] = (
        lambda *_: Scratch()
    )
    product_scratch: int = 0
    held_scratch: int = 0
    fused_recurrence: bool = False
    sparse: bool = False
    keeps_scores: bool = False
    keeps_floats: bool = False
    argmax_copies: float = 0.0
    doubt: tuple[float, float] = (0.15, 0.15)


def unrolled_images(
    x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor
) -> Scratch:
    """Return the scratch space of TensorFlow's convolutions on the CPU.

    Both gradients are ready at once and run in two threads.
    """
    image = y.shape[1:]
    to_kernel, to_input = space.unrolled_bytes(image, kernel.shape, x.shape[0], x.width)
    return Scratch(to_kernel=to_kernel, to_input=to_input, at_once=space.threads() > 1)


def turned_operands(
    x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor
) -> Scratch:
    """Return the scratch space of TensorFlow's convolutions in later steps.

    From the allocations on a GPU: the transposed input in the forward pass. In the
    backward pass, both operands and the result before it is transposed.
    """
    trial = transformed(x, y, kernel)
    if x.width < _TENSOR_CORE_LAYOUT_IS_LAST:
        return Scratch(trial=trial)
    forward = x.nbytes + kernel.nbytes
    backward = 2 * x.nbytes + y.nbytes + kernel.nbytes
    return Scratch(forward, backward, backward, max(trial, backward))


def searched(x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor) -> Scratch:
    """Return the scratch space for XLA: the geometric mean of both bounds."""
    least = turned_operands(x, y, kernel)
    most = transformed(x, y, kernel)

    def between(size: int) -> int:
        return max(size, round(math.sqrt(size * most)))

    backward = between(least.to_kernel)
    return Scratch(between(least.forward), backward, backward, least.trial)


def transformed(x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor) -> int:
    """Return the scratch space of a convolution by Fourier transform, 0 if none."""
    axes, reach = x.shape[1:-1], kernel.shape[:-2]
    if len(axes) != 2 or y.shape[1:-1] != axes or max(reach) == 1:
        return 0
    samples, into, out = x.shape[0], x.shape[-1], y.shape[-1]
    padded_lengths = [
        space.padded_length(n, k) for n, k in zip(axes, reach, strict=True)
    ]
    whole = 0
    if max(padded_lengths) <= _LARGEST_TRANSFORM:
        images = samples * (into + 2 * out)
        whole = space.fourier_bytes(padded_lengths, images, into * out, x.width)
    valid = [_TILE - k + 1 for k in reach]
    tile_bytes = 0
    if min(valid) > 0:
        # Tiles of 32 by 32, with one transform per operand.
        sizes = zip(axes, valid, strict=True)
        tiles = math.prod(-(-n // side) for n, side in sizes)
        images = samples * (into + out) * tiles + into * out
        tile_bytes = images * _TILE * (_TILE // 2 + 1) * 2 * x.width
    return min(space.LARGEST_TRIAL, max(whole, tile_bytes))


def fused(ops: Sequence[Op], results: Sequence[ProgramTensor]) -> list[Op]:
    """Return the operations that remain after XLA's fusion.

    Element-wise operations are recomputed in each consumer, and reductions read the
    sources of their operands. Stored tensors are the operands and results of matrix
    products, convolutions and reductions. A value with several consumers is also stored
    if that costs less than reading its sources again, as for a sum of many blocks.
    """
    results_and_operands = {x.root for x in results}
    for op in ops:
        if not (op.fusible or op.reduces):
            results_and_operands |= {x.root for x in op.reads}
    readers = Counter(x.root for op in ops for x in op.reads)
    sources: dict[ProgramTensor, dict[ProgramTensor, None]] = {}
    remaining: list[Op] = []
    for op in ops:
        reads: dict[ProgramTensor, None] = {}
        for x in op.reads:
            reads |= sources.get(x.root, {x.root: None})
        if op.fusible and op.writes and op.writes[0] not in results_and_operands:
            y, kernels = op.writes[0], readers[op.writes[0]]
            read = sum(x.nbytes for x in reads)
            if kernels * read <= read + (kernels + 1) * y.nbytes:
                sources[y] = reads
                continue
        over = tuple(reads) if op.fusible else ()
        space = 0 if op.fusible else op.workspace
        remaining.append(replace(op, reads=tuple(reads), over=over, workspace=space))
    return remaining


_WHOLE_CHUNKS = 0.08
"""Fraction wasted by unsplit chunks of TensorFlow's allocator: 7 to 9 % in replayed
traces. The waste of one step depends on all earlier steps, and may be smaller for a
larger batch. The mean is therefore used instead of a simulation."""

_THREADS = (0.15, 0.36)
"""Relative error if several threads run operations once their inputs are ready. The
order varies, and updates overlap with the backward pass. Fitted to the eight cases of
`tests/benchmarks/bench_transfer.py`."""

_COMPILED = Framework(
    kernels="xla", ordered=fused, updates="merged", one_block=True, doubt=(0.25, 0.35)
)
_TORCH = Framework(
    kernels="torch",
    updates="lists",
    in_place=False,
    keeps_outputs=True,
    keeps_gradients=True,
    whole_chunks=False,
    rounding=512,
)
_FRAMEWORKS = {
    ("tensorflow", False): Framework(
        ordered=as_ready,
        waste=_WHOLE_CHUNKS,
        sparse=True,
        # Keras replaces negative zeros: sign bits, then the new values, and a mask.
        argmax_copies=1.25,
    ),
    ("tensorflow", True): _COMPILED,
    ("jax", True): replace(_COMPILED, keeps_scores=True),
    ("jax", False): Framework(
        kernels="xla",
        updates="lists",
        in_place=False,
        keeps_outputs=True,
        waste=_WHOLE_CHUNKS,
        doubt=(0.5, 0.5),
    ),
    ("torch", False): _TORCH,
    ("torch", True): replace(
        _TORCH,
        kernels="xla",
        ordered=fused,
        in_place=True,
        keeps_outputs=False,
        doubt=(0.35, 0.5),
    ),
}
"""Execution rules by backend and compilation."""


def framework(backend: str, device: str, *, compiled: bool) -> Framework:
    """Return the execution rules of a backend on a device."""
    base = _FRAMEWORKS[backend, compiled]
    is_eager = backend == "tensorflow" and not compiled
    if device == "cpu":
        cpu = replace(base, scratch=unrolled_images, doubt=_THREADS)
        # On a CPU, XLA does not follow TensorFlow's order.
        keeps_floats = compiled and backend == "tensorflow"
        return cpu if is_eager else replace(base, keeps_floats=keeps_floats)
    if backend == "torch":
        return replace(base, held_scratch=_TORCH_WORKSPACE, fused_recurrence=True)
    if compiled:
        return replace(base, scratch=searched, product_scratch=_PRODUCT_WORKSPACE)
    return replace(base, scratch=turned_operands, fused_recurrence=is_eager)
