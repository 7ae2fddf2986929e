"""How each backend runs the operations of a step, and what its convolutions take.

cuDNN has several algorithms for one convolution, and a framework tries them out in the
first step and keeps the fastest. What that one takes nobody knows before, but it lies
between two figures: the operands turned round for the tensor cores, and both of them in
the frequency domain.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kerasmem.memory.allocator.torch_allocator import Allocator, CachingAllocator
from kerasmem.memory.estimate import scratch as space
from kerasmem.memory.program import (
    Op,
    ProgramTensor,
    as_ready,
    as_written,
    unlimited_bfc,
)
from kerasmem.units import MIB

_TENSOR_CORE_LAYOUT_IS_LAST = 4
"""From this width on (float32) frameworks run convolutions with the channels first, and
the kernels of tensor cores want them last."""
_LARGEST_TRANSFORM = 256
_TILE = 32
_TORCH_WORKSPACE = 32 * MIB
"""cuBLAS's scratch space on GPUs with compute capability 9, as torch asks for it."""
_PRODUCT_WORKSPACE = 4 * MIB
"""What each call of cuBLAS has in XLA's plans, however large its matrices; and the
block of a whole step has room for one at its fullest."""


class Scratch(NamedTuple):
    """Scratch space of a convolution, in bytes.

    Args:
        forward: of the convolution itself.
        to_kernel: of the gradient of its kernel.
        to_input: of the gradient of its input.
        trial: the most that is tried out in the first step.
        at_once: whether both gradients are made at the same time.
    """

    forward: int = 0
    to_kernel: int = 0
    to_input: int = 0
    trial: int = 0
    at_once: bool = False


@dataclass(frozen=True, kw_only=True)
class Framework:
    """How a backend runs a step.

    Args:
        kernels: whose operations layers are made of: `"tensorflow"`, `"xla"` or
            `"torch"`.
        ordered: puts operations into the order in which they run, given the tensors
            that outlive them, and merges them if the backend does.
        updates: how variables are updated: `"each"` as soon as its gradient is there,
            `"merged"` likewise in one operation, `"lists"` all at once at the end.
        in_place: whether a result may take the memory of an operand that ends.
        keeps_outputs: whether every layer's output lives until the forward pass ends,
            as in Keras's own loop over the layers.
        keeps_gradients: whether gradients live on until the next step.
        one_block: whether the whole step is one allocation.
        allocator: makes the allocator, without a limit.
        rounding: bytes to whose multiple it rounds a block.
        waste: what it gives beyond that on average, as a share.
        scratch: scratch space of a convolution.
        product_scratch: scratch space of matrix products, one for all of a step.
        held_scratch: bytes that the backend keeps for matrix products, per thread: one
            goes forward, another backward.
        fused_recurrence: whether an LSTM is one operation.
        sparse: whether the gradient of an embedding is of the rows that were read.
        keeps_scores: whether the gradient of attention reads its scores, too.
        keeps_floats: whether floats of all codes are there from the begin to the end,
            those for gradients too.
        doubt: how far the bytes of a step may be off, as a share of them: downward
            and upward.
    """

    kernels: str = "tensorflow"
    ordered: Callable[[Sequence[Op], Sequence[ProgramTensor]], list[Op]] = as_written
    updates: str = "each"
    in_place: bool = True
    keeps_outputs: bool = False
    keeps_gradients: bool = False
    one_block: bool = False
    allocator: Callable[[], Allocator] = unlimited_bfc
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
    doubt: tuple[float, float] = (0.15, 0.15)


def unrolled_images(
    x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor
) -> Scratch:
    """Return the space that TensorFlow's convolutions take on this machine's CPU.

    Both gradients are ready at once, and two space.threads run both.
    """
    image = y.shape[1:]
    to_kernel, to_input = space.unrolled_bytes(image, kernel.shape, x.shape[0], x.width)
    return Scratch(to_kernel=to_kernel, to_input=to_input, at_once=space.threads() > 1)


def turned_operands(
    x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor
) -> Scratch:
    """Return the space that TensorFlow's convolutions take in later steps.

    Seen in the allocations of a GPU: the input turned round going forward; both sides,
    and the result of the gradient before it is turned back, going backward.
    """
    trial = transformed(x, y, kernel)
    if x.width < _TENSOR_CORE_LAYOUT_IS_LAST:
        return Scratch(trial=trial)
    forward = x.nbytes + kernel.nbytes
    backward = 2 * x.nbytes + y.nbytes + kernel.nbytes
    return Scratch(forward, backward, backward, max(trial, backward))


def searched(x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor) -> Scratch:
    """Return the space that XLA's choice takes: the mean of both figures, in powers."""
    least = turned_operands(x, y, kernel)
    most = transformed(x, y, kernel)

    def between(size: int) -> int:
        return max(size, round(math.sqrt(size * most)))

    backward = between(least.to_kernel)
    return Scratch(between(least.forward), backward, backward, least.trial)


def transformed(x: ProgramTensor, y: ProgramTensor, kernel: ProgramTensor) -> int:
    """Return the space of a convolution by Fourier transform, 0 if there is none."""
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
        # Tiles of 32 by 32, each side once.
        sizes = zip(axes, valid, strict=True)
        tiles = math.prod(-(-n // side) for n, side in sizes)
        images = samples * (into + out) * tiles + into * out
        tile_bytes = images * _TILE * (_TILE // 2 + 1) * 2 * x.width
    return min(space.LARGEST_TRIAL, max(whole, tile_bytes))


def fused(ops: Sequence[Op], results: Sequence[ProgramTensor]) -> list[Op]:
    """Return what is left of operations when XLA has merged them.

    What works entry by entry is computed where it is read, as often as that is, and
    not written; a reduction reads what its operands are made of. In memory remain the
    results of matrix products, convolutions and reductions, and what those read; and
    what is read several times, where it costs less to write it than to read again all
    that it is made of, such as the sum of many blocks.

    Args:
        ops: the operations of a step, in order.
        results: tensors that outlive the step.
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
        remaining.append(replace(op, reads=tuple(reads), over=over))
    return remaining


_WHOLE_CHUNKS = 0.08
"""What TensorFlow's allocator wastes by giving chunks whole: 7 to 9 % in replayed
traces. The figure of one step hangs on all steps before it, and a larger batch may even
waste less, so the mean stands here and not a simulation."""

_THREADS = (0.15, 0.36)
"""Doubt where several threads run operations as soon as their inputs are ready: the
order varies, and updates overlap with the backward pass. Chosen on the eight cases of
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
    allocator=CachingAllocator,
    rounding=512,
)
_FRAMEWORKS = {
    ("tensorflow", False): Framework(
        ordered=as_ready, waste=_WHOLE_CHUNKS, sparse=True
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
"""By backend, and whether the step is compiled."""


def framework(backend: str, device: str, *, compiled: bool) -> Framework:
    """Return how a backend runs a step on a device."""
    base = _FRAMEWORKS[backend, compiled]
    is_eager = backend == "tensorflow" and not compiled
    if device == "cpu":
        cpu = replace(base, scratch=unrolled_images, doubt=_THREADS)
        # XLA keeps to no order of TensorFlow's there.
        keeps_floats = compiled and backend == "tensorflow"
        return cpu if is_eager else replace(base, keeps_floats=keeps_floats)
    if backend == "torch":
        return replace(base, held_scratch=_TORCH_WORKSPACE, fused_recurrence=True)
    if compiled:
        return replace(base, scratch=searched, product_scratch=_PRODUCT_WORKSPACE)
    return replace(base, scratch=turned_operands, fused_recurrence=is_eager)
