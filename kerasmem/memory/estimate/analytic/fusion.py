"""What is left of a step's operations when XLA has merged them.

What works entry by entry is computed where it is read, as often as that is, and never
written; a reduction reads what its operands are made of. In memory remain the results
of matrix products, convolutions and reductions, and what those read.
"""

from collections.abc import Sequence
from dataclasses import replace

from kerasmem.memory.program import Op, Tensor


def fused(ops: Sequence[Op], kept: Sequence[Tensor]) -> list[Op]:
    """Return the operations that write to memory, reading only what is written.

    Args:
        ops: the operations of a step, in order.
        kept: tensors that outlive the step.
    """
    written = {x.root for x in kept}
    for op in ops:
        if not (op.fusible or op.reduces):
            written |= {x.root for x in op.reads}
    sources: dict[Tensor, dict[Tensor, None]] = {}
    left: list[Op] = []
    for op in ops:
        reads: dict[Tensor, None] = {}
        for x in op.reads:
            reads |= sources.get(x.root, {x.root: None})
        if op.fusible and op.writes and op.writes[0] not in written:
            sources[op.writes[0]] = reads
            continue
        over = tuple(reads) if op.fusible else ()
        left.append(replace(op, reads=tuple(reads), over=over))
    return left
