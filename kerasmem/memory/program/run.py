"""A program in an allocator: its peak, and the pool that is taken for it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.memory.allocator.caching import CachingAllocator
from kerasmem.memory.program.liveness import Event, plan
from kerasmem.memory.program.operations import Op, Program, Tensor

_NO_LIMIT = 1 << 62
_SMALL = 64


class Allocator(Protocol):
    """What gives memory and takes it back."""

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the blocks in use, as they were given."""
        ...

    @property
    def pool_bytes(self) -> int:
        """Bytes taken from the device."""
        ...

    def allocate(self, size: int) -> int | None:
        """Return the address of `size` bytes, from 1; None if there is no room."""
        ...

    def free(self, address: int) -> None:
        """Take a block back."""
        ...


class RoundingAllocator:
    """Counts blocks rounded up to a multiple; more bytes never make its sum lower."""

    def __init__(self, rounding: int) -> None:
        self.in_use_bytes = self.pool_bytes = 0
        self._rounding = rounding
        self._sizes: dict[int, int] = {}
        self._next = 0

    def allocate(self, size: int) -> int:
        """Return a number for the block."""
        self._next += 1
        size = self._sizes[self._next] = -(-size // self._rounding) * self._rounding
        self.in_use_bytes += size
        self.pool_bytes = max(self.pool_bytes, self.in_use_bytes)
        return self._next

    def free(self, address: int) -> None:
        """Take a block back."""
        self.in_use_bytes -= self._sizes.pop(address)


def allocator(name: str) -> Allocator:
    """Return an empty allocator without a limit.

    Args:
        name: `"bfc"` (TensorFlow's and XLA's; it may grow) or `"torch"`.
    """
    if name == "torch":
        return CachingAllocator()
    return BFCAllocator(PoolPolicy(limit_bytes=_NO_LIMIT))


Block = Tensor | Op
"""What memory is for: an owner of memory, or an operation for its scratch space."""


@dataclass(frozen=True)
class Peak:
    """The moment of a step in which most is in use.

    Args:
        nbytes: bytes in use, as the allocator gave them.
        uses: the blocks in use with the bytes asked for.
    """

    nbytes: int
    uses: tuple[tuple[Block, int], ...]


def peak_of(
    events: Sequence[Event], rounding: int, present: Sequence[Tensor] = ()
) -> Peak:
    """Return the peak of a step whose blocks are rounded up to a multiple."""
    memory = RoundingAllocator(rounding)
    at: dict[Block, int] = {x: memory.allocate(x.nbytes) for x in present}
    return _run(events, memory, at, present)


@dataclass(frozen=True)
class Life:
    """Some steps, one after another.

    Args:
        peaks: the peak of each step.
        pool_bytes: what the allocator took from the device at most.
    """

    peaks: tuple[Peak, ...]
    pool_bytes: int


def live(steps: Sequence[Program], memory: Allocator, *, in_place: bool) -> Life:
    """Return what becomes of an allocator: variables are made, then steps run.

    Args:
        steps: programs with the same present tensors.
        memory: an empty allocator.
        in_place: as in `plan`.
    """
    variables = steps[0].present
    addresses = [_initialized(memory, x) for x in variables]
    peaks = []
    for step in steps:
        at: dict[Block, int] = dict(zip(step.present, addresses, strict=True))
        planned = plan(step, in_place=in_place)
        peaks.append(_run(planned.events, memory, at, step.present))
        left = [_owner(step.successors, planned.owner, x) for x in step.present]
        addresses = [at.pop(x) for x in left]
        for address in at.values():
            memory.free(address)
    return Life(tuple(peaks), memory.pool_bytes)


def _owner(
    successors: Mapping[Tensor, Tensor], owner: Mapping[Tensor, Tensor], x: Tensor
) -> Tensor:
    last = successors.get(x, x)
    return owner.get(last, last)


def _initialized(memory: Allocator, x: Tensor) -> int:
    """Make what is there before: a weight of random numbers by way of two arrays."""
    is_drawn = x.kind == "parameter" and x.nbytes > _SMALL
    drawn = [_taken(memory, x.nbytes) for _ in range(2 if is_drawn else 0)]
    address = _taken(memory, x.nbytes)
    for temporary in drawn:
        memory.free(temporary)
    return address


def _taken(memory: Allocator, size: int) -> int:
    address = memory.allocate(max(size, 1))
    if address is None:
        raise MemoryError(f"No pool has room for this. Received: {size=}.")
    return address


def _run(
    events: Sequence[Event],
    memory: Allocator,
    at: dict[Block, int],
    present: Iterable[Tensor],
) -> Peak:
    best, best_at = memory.in_use_bytes, -1
    for number, event in enumerate(events):
        if event.nbytes:
            at[event.block] = _taken(memory, event.nbytes)
            if memory.in_use_bytes > best:
                best, best_at = memory.in_use_bytes, number
        elif event.block in at:
            memory.free(at.pop(event.block))
    alive: dict[Block, int] = {x: x.nbytes for x in present}
    for event in events[: best_at + 1]:
        if event.nbytes:
            alive[event.block] = event.nbytes
        else:
            alive.pop(event.block, None)
    return Peak(best, tuple(alive.items()))
