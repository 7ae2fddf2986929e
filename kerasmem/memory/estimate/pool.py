"""A planned step in the pool of the framework's allocator.

Weights, slots and the batch are blocks of their own; all temporary memory of the step
is one block. The allocator does not split a chunk below twice what is asked for unless
128 MiB would be left, so that a block may come with much that nobody asked for.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kerasmem.memory.allocator.bfc import WHOLE_CHUNK_WASTE, rounded
from kerasmem.memory.program import unlimited_bfc
from kerasmem.records import EstimatePart

_ARRAYS_OF_A_WEIGHT = {"tensorflow": 3, "jax": 1}
_ARRAYS_OF_A_SLOT = {"tensorflow": 2, "jax": 3}
"""Arrays that are there at once while a first value is made. These give, of nine
trainings on an H200, what was in use after the first step to 1 % of the peak."""
_SMALL = 64
_SMALLEST_REGION = 2 << 20


class InUse(NamedTuple):
    """Bytes in use in the pool.

    Args:
        state: of weights and slots.
        others: of the batch and of what the step returns.
        block: of the temporary block.
    """

    state: int
    others: int
    block: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.state + self.others + self.block


def in_use(
    backend: str,
    stored: Iterable[EstimatePart],
    others: Sequence[int],
    block: int,
) -> InUse:
    """Return what a step has in use in a pool that has only what it needs.

    Args:
        backend: `"tensorflow"` or `"jax"`, which make first values in other ways.
        stored: the variables, in the order in which they are made.
        others: bytes of other arrays: the batch, what the step returns.
        block: bytes of the temporary block.
    """
    memory = unlimited_bfc()
    for part in stored:
        of_weight = part.category == "parameter"
        arrays = (_ARRAYS_OF_A_WEIGHT if of_weight else _ARRAYS_OF_A_SLOT)[backend]
        count = arrays if part.nbytes > _SMALL else 1
        *first, _ = (memory.allocate(max(part.nbytes, 1)) for _ in range(count))
        for address in first:
            memory.free(address or 0)
    state = memory.in_use_bytes
    for nbytes in others:
        memory.allocate(max(nbytes, 1))
    beside = memory.in_use_bytes - state
    return InUse(state, beside, block_bytes(block))


def block_bytes(block: int) -> int:
    """Return what the allocator gives for the temporary block of a step.

    The pool grows by regions of twice the size, and the first step, whose trials come
    and go, leaves a free one of each; the block gets the smallest that it fits in,
    whole or split.

    Example:
        >>> block_bytes(77_602_328) == 128 << 20
        True
        >>> block_bytes(887_227_688)
        887227904
    """
    need = rounded(block)
    region = _SMALLEST_REGION
    while region < need:
        region *= 2
    is_split = region >= 2 * need or region - need >= WHOLE_CHUNK_WASTE
    return need if is_split else region


def exact_bytes(stored: Iterable[EstimatePart], others: Iterable[int]) -> int:
    """Return the bytes of arrays that are rounded up and nothing else."""
    sizes = (*(part.nbytes for part in stored), *others)
    return sum(rounded(max(n, 1)) for n in sizes)
