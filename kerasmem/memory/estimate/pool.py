"""Simulates a planned step in the memory pool of the framework.

Weights, optimizer slots and the batch are separate blocks. All temporary memory of the
step is one block. The allocator splits a chunk only if the chunk is at least twice the
requested size, or if at least 128 MiB would remain.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kerasmem.memory.allocator.bfc import WHOLE_CHUNK_WASTE, rounded
from kerasmem.memory.program import unlimited_bfc
from kerasmem.records import EstimatePart

_ARRAYS_OF_A_WEIGHT = {"tensorflow": 3, "jax": 1}
_ARRAYS_OF_A_SLOT = {"tensorflow": 2, "jax": 3}
"""Number of arrays that exist while an initial value is created. With these numbers,
nine trainings on an H200 are reproduced within 1 % of the peak."""
_SMALL = 64
_SMALLEST_REGION = 2 << 20


class InUse(NamedTuple):
    """Bytes in use in the pool.

    `state` covers weights and optimizer slots. `others` covers the batch and the
    results.
    """

    state: int
    others: int
    block: int

    @property
    def total(self) -> int:
        """Total bytes in use."""
        return self.state + self.others + self.block


def in_use(
    backend: str,
    stored: Iterable[EstimatePart],
    others: Sequence[int],
    block: int,
) -> InUse:
    """Return the bytes in use during a step in a new pool.

    `stored` contains the variables in the order of their creation.
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
    """Return the allocated bytes for the temporary block of a step.

    The pool doubles its region size as it grows, and autotuning in the first step
    leaves one free region per size. The block gets the smallest region that fits, whole
    or split.

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
    """Return the total bytes of arrays after rounding each size."""
    sizes = (*(part.nbytes for part in stored), *others)
    return sum(rounded(max(n, 1)) for n in sizes)
