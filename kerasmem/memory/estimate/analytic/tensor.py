"""What a step is made of: tensors, and operations that read and write them."""

import math
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Tensor:
    """A value in memory.

    Args:
        shape: its shape.
        width: bytes of one entry.
        layer: path of the layer that made it.
        base: the tensor whose memory it looks into, None if it has its own.
        kind: `"value"`, `"parameter"` (lives outside of the step), `"input"` or
            `"gradient"` (of a parameter).
        differentiable: whether a gradient flows to it.
        layout: how its entries lie: `"last"` or `"first"` for the channels.
    """

    shape: Shape
    width: int
    layer: str | None = None
    base: "Tensor | None" = None
    kind: str = "value"
    differentiable: bool = True
    layout: str = "last"

    @property
    def nbytes(self) -> int:
        """Bytes of its entries."""
        return math.prod(self.shape) * self.width

    @property
    def root(self) -> "Tensor":
        """The tensor that owns the memory."""
        return self if self.base is None else self.base


@dataclass(eq=False, slots=True)
class Op:
    """One operation.

    Args:
        name: what it does, such as `"matmul"`.
        layer: path of the layer it belongs to.
        phase: `"forward"`, `"backward"` or `"optimizer"`.
        reads: what must be there.
        writes: what it makes.
        over: inputs whose memory it may take for its output if nobody else needs them.
        workspace: bytes of scratch space while it runs.
        trial: bytes of scratch space that the first step tries out, where more.
        fusible: True for what XLA merges into its consumers: entry by entry.
        reduces: True for a reduction, which XLA merges with what it reads.
        call: number of the model's call that it belongs to, None for none.
    """

    name: str
    layer: str | None
    phase: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    over: tuple[Tensor, ...] = ()
    workspace: int = 0
    trial: int = 0
    fusible: bool = False
    reduces: bool = False
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Scratch:
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
