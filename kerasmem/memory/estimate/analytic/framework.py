"""How each backend runs the operations of a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kerasmem.memory.estimate.analytic.fusion import fused
from kerasmem.memory.estimate.analytic.layers.compiled import COMPILED
from kerasmem.memory.estimate.analytic.layers.tensorflow import TENSORFLOW
from kerasmem.memory.estimate.analytic.layers.torch import TORCH
from kerasmem.memory.estimate.analytic.scratch import (
    Scratch,
    no_scratch,
    searched,
    turned_operands,
    unrolled_images,
)
from kerasmem.memory.estimate.analytic.site import Handler
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import Op, Tensor
from kerasmem.memory.program.order import as_ready, as_written
from kerasmem.units import MIB

_MATMUL_WORKSPACE = 32 * MIB
"""cuBLAS's scratch space on GPUs with compute capability 9, as torch and XLA ask for
it."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """How a backend runs a step.

    Args:
        handlers: what each class of layer runs.
        ordered: puts operations into the order in which they run, given the tensors
            that outlive them, and merges them if the backend does.
        updates: how variables are updated: `"each"` as soon as its gradient is there,
            `"merged"` likewise in one operation, `"lists"` all at once at the end.
        in_place: whether a result may take the memory of an operand that ends.
        keeps_outputs: whether every layer's output lives until the forward pass ends,
            as in Keras's own loop over the layers.
        keeps_gradients: whether gradients live on until the next step.
        one_block: whether the whole step is one allocation.
        allocator: `"bfc"` or `"torch"`.
        rounding: bytes to whose multiple it rounds a block.
        waste: what it gives beyond that on average, as a share.
        scratch: scratch space of a convolution.
        product_scratch: scratch space of a matrix product.
        held_scratch: bytes that the backend keeps for matrix products, per thread: one
            goes forward, another backward.
        fused_recurrence: whether an LSTM is one operation.
        doubt: how far the bytes of a step may be off, as a share of them: downward
            and upward.
    """

    handlers: Mapping[str, Handler]
    ordered: Callable[[Sequence[Op], Sequence[Tensor]], list[Op]]
    updates: str = "each"
    in_place: bool = True
    keeps_outputs: bool = False
    keeps_gradients: bool = False
    one_block: bool = False
    allocator: str = "bfc"
    rounding: int = 256
    waste: float = 0.0
    scratch: Callable[[Tensor, Tensor, Tensor], Scratch] = no_scratch
    product_scratch: int = 0
    held_scratch: int = 0
    fused_recurrence: bool = False
    doubt: tuple[float, float] = (0.15, 0.15)

    def held(self, *, training: bool) -> int:
        """Return the bytes that the backend keeps for matrix products in all."""
        return self.held_scratch * (2 if training else 1)


_WHOLE_CHUNKS = 0.08
"""What TensorFlow's allocator wastes by giving chunks whole: 7 to 9 % in replayed
traces. The figure of one step hangs on all steps before it, and a larger batch may even
waste less, so the mean stands here and not a simulation."""

_THREADS = (0.3, 0.3)
"""Doubt where several threads run what is ready, never twice in the same order."""

_TENSORFLOW = Framework(handlers=TENSORFLOW, ordered=as_ready, waste=_WHOLE_CHUNKS)
_COMPILED = Framework(
    handlers=COMPILED,
    ordered=fused,
    updates="merged",
    one_block=True,
    doubt=(0.25, 0.35),
)
_TORCH = Framework(
    handlers=TORCH,
    ordered=as_written,
    updates="lists",
    in_place=False,
    keeps_outputs=True,
    keeps_gradients=True,
    allocator="torch",
    rounding=512,
)
_TORCH_COMPILED = replace(
    _TORCH,
    handlers=COMPILED,
    ordered=fused,
    in_place=True,
    keeps_outputs=False,
    doubt=(0.35, 0.5),
)
_JAX_EAGER = Framework(
    handlers=COMPILED,
    ordered=as_written,
    updates="lists",
    in_place=False,
    keeps_outputs=True,
    waste=_WHOLE_CHUNKS,
    doubt=(0.5, 0.5),
)


def framework(request: Request) -> Framework:
    """Return how the backend of a request runs a step on its device."""
    if request.backend == "torch":
        chosen = _TORCH_COMPILED if request.jit_compile else _TORCH
    elif request.jit_compile:
        chosen = _COMPILED
    else:
        chosen = _TENSORFLOW if request.backend == "tensorflow" else _JAX_EAGER
    if request.device == "gpu":
        return _on_gpu(chosen, request)
    if chosen is _TENSORFLOW:
        return replace(chosen, scratch=unrolled_images, doubt=_THREADS)
    return chosen


def _on_gpu(chosen: Framework, request: Request) -> Framework:
    if chosen.allocator == "torch":
        return replace(chosen, held_scratch=_MATMUL_WORKSPACE, fused_recurrence=True)
    if chosen.one_block:
        return replace(chosen, scratch=searched, product_scratch=_MATMUL_WORKSPACE)
    recurrence = request.backend == "tensorflow"
    return replace(chosen, scratch=turned_operands, fused_recurrence=recurrence)
