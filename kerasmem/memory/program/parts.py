"""The parts of an estimate, from the blocks in use at the peak."""

from collections.abc import Iterable, Mapping, Sequence

from kerasmem.memory.program.operations import Op, Tensor
from kerasmem.memory.program.run import Peak
from kerasmem.records import EstimatePart


def parts_of(
    stored: Sequence[EstimatePart],
    peak: Peak,
    later: set[Tensor],
    extra: dict[str, int],
) -> tuple[EstimatePart, ...]:
    """Return the parts of a peak: one per category and layer, most bytes first.

    Args:
        stored: what is there before the step, one per variable.
        peak: the peak of the step.
        later: tensors that are kept for the backward pass.
        extra: bytes that belong to no layer, by category.
    """
    sums: dict[tuple[str, str | None], int] = {}
    pieces = [
        *((part.category, part.layer, part.nbytes) for part in stored),
        *((_category(block, later), block.layer, size) for block, size in peak.uses),
        *((category, None, size) for category, size in extra.items()),
    ]
    for category, layer, size in pieces:
        sums[category, layer] = sums.get((category, layer), 0) + size
    largest = sorted(sums.items(), key=lambda item: -item[1])
    return tuple(EstimatePart(*key, nbytes) for key, nbytes in largest if nbytes)


def _category(block: Tensor | Op, later: set[Tensor]) -> str:
    if isinstance(block, Op):
        return "workspace"
    if block.kind != "value":
        return block.kind
    return "activation" if block in later else "temporary"


def kept_for_backward(ops: Iterable[Op], owner: Mapping[Tensor, Tensor]) -> set[Tensor]:
    """Return the memory that the forward pass fills and a later phase reads.

    Args:
        ops: the operations of a step.
        owner: whose memory a tensor has taken over, for those that have.
    """
    made: set[Tensor] = set()
    later: set[Tensor] = set()
    for op in ops:
        if op.phase == "forward":
            made.update(op.writes)
        elif op.phase in ("backward", "optimizer"):
            later.update(x.root for x in op.reads)
    return {owner.get(x, x) for x in made & later}
