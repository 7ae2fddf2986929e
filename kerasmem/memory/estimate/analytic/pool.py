"""A step's requests at their peak, and the pool that an allocator takes for them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.memory.estimate.analytic.liveness import Request
from kerasmem.memory.estimate.analytic.tensor import Op, Tensor
from kerasmem.memory.estimate.analytic.torch_pool import TorchAllocator

_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Peak:
    """The moment of a step in which most is in use.

    Args:
        nbytes: bytes in use, each block rounded up.
        uses: the blocks in use with the bytes asked for.
    """

    nbytes: int
    uses: tuple[tuple[Tensor | Op, int], ...]


def peak_of(requests: Sequence[Request], rounding: int) -> Peak:
    """Return the peak of a step whose blocks are rounded up to a multiple.

    More bytes in any request never make it lower.
    """
    total = best = 0
    best_at = -1
    sizes: dict[Tensor | Op, int] = {}
    for number, request in enumerate(requests):
        if not request.nbytes:
            total -= sizes.pop(request.block, 0)
            continue
        sizes[request.block] = -(-request.nbytes // rounding) * rounding
        total += sizes[request.block]
        if total > best:
            best, best_at = total, number
    return Peak(best, _alive(requests[: best_at + 1]))


def _alive(requests: Iterable[Request]) -> tuple[tuple[Tensor | Op, int], ...]:
    alive: dict[Tensor | Op, int] = {}
    for request in requests:
        if request.nbytes:
            alive[request.block] = request.nbytes
        else:
            alive.pop(request.block, None)
    return tuple(alive.items())


def pool_bytes(
    name: str, stored: Iterable[int], steps: Iterable[Sequence[Request]]
) -> int:
    """Return the bytes that an allocator takes from the device for some steps.

    Args:
        name: `"bfc"` (it may grow) or `"torch"`.
        stored: bytes of every block that is there before.
        steps: the requests of each step.
    """
    growing = PoolPolicy(limit_bytes=_NO_LIMIT)
    allocator = TorchAllocator() if name == "torch" else BFCAllocator(growing)
    for nbytes in stored:
        allocator.allocate(max(1, nbytes))
    for requests in steps:
        at: dict[Tensor | Op, int | None] = {}
        for request in requests:
            if request.nbytes:
                at[request.block] = allocator.allocate(request.nbytes)
            else:
                _give_back(allocator, at.pop(request.block, None))
        for address in at.values():
            _give_back(allocator, address)
    return allocator.pool_bytes


def _give_back(allocator: TorchAllocator | BFCAllocator, address: int | None) -> None:
    if address is not None:
        allocator.free(address)
