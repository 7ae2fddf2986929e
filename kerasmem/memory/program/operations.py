"""A step as a program: operations that read and write tensors.

The tables of layers, TensorFlow's graph, torch's fake tensors and HLO write programs;
one liveness pass and one interface of allocators read them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Tensor:
    """A value in memory.

    Args:
        shape: its shape.
        width: bytes of one entry.
        layer: path of the layer that made it.
        base: the tensor whose memory it looks into, None if it has its own.
        kind: `"value"`, `"parameter"` or `"optimizer_state"` (they live outside of the
            step), `"input"` or `"gradient"` (of a parameter).
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


@dataclass(frozen=True)
class Program:
    """The operations of a step, in the order in which they run.

    Args:
        ops: the operations.
        kept: tensors that outlive them.
        present: tensors that are there before, such as variables.
        successors: for a present tensor, that which the step leaves in its place.
        unknown: classes of layers of which only inputs and outputs are in it.
    """

    ops: tuple[Op, ...]
    kept: tuple[Tensor, ...] = ()
    present: tuple[Tensor, ...] = ()
    successors: Mapping[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])
    unknown: frozenset[str] = frozenset()
