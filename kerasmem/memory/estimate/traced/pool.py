"""A model's life in TensorFlow's allocator, simulated: made, then trained."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kerasmem.backends.profile import AllocatorTrace, MemoryEvent, Profile, Storage
from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.memory.estimate.traced.executor import Step
from kerasmem.memory.estimate.traced.kernels import CONVOLUTIONS
from kerasmem.units import GIB

DEVICE = "simulated"
_LIMIT = 1 << 50
_TRIAL_FACTOR = 16
_LARGEST_TRIAL = 3 * GIB // 2
_LATER_STEPS = 2
_SMALL = 64


@dataclass(frozen=True)
class Life:
    """What the allocator went through.

    Args:
        last: the last step, with the variables in the beginning.
        first_step_bytes: most bytes in use in the first step.
        requested_bytes: most bytes in use in the last step, without rounding and
            waste.
        pool_bytes: what the allocator took from the device at most.
    """

    last: Profile
    first_step_bytes: int
    requested_bytes: int
    pool_bytes: int


def live(
    variables: Sequence[int],
    slots_from: int,
    steps: Sequence[Step],
    batch: Sequence[int],
    numbers: dict[int, int],
    constants: Sequence[int] = (),
) -> Life:
    """Return what becomes of the allocator over a few equal steps.

    Args:
        variables: bytes of each variable: the model's, then the optimizer's.
        slots_from: number of the first of the optimizer's.
        steps: what one step does.
        batch: bytes of each tensor of a batch, on the device while a step runs.
        numbers: number of a variable by that of its handle in the graph.
        constants: bytes of each constant of the graph, on the device from the first
            step on.
    """
    pool = _Pool(variables, slots_from, numbers)
    pool.keep(constants)
    pool.step([*_with_trials(steps)], batch)
    first = pool.allocator.peak_bytes
    for _ in range(_LATER_STEPS):
        pool.step(steps, batch)
    return Life(
        last=pool.profile(),
        first_step_bytes=first,
        requested_bytes=sum((*variables, *constants, *batch)) + _requested(steps),
        pool_bytes=pool.allocator.pool_bytes,
    )


def _with_trials(steps: Sequence[Step]) -> Iterable[Step]:
    """Yield the steps with what cuDNN takes in the first one to try algorithms.

    How much that is, nobody tells; the largest multiple of what the chosen algorithm
    takes that recorded first steps showed, up to a limit.
    """
    for step in steps:
        yield step
        if step.comes and step.is_scratch and step.operation.kind in CONVOLUTIONS:
            trial = min(_TRIAL_FACTOR * step.nbytes, _LARGEST_TRIAL)
            for comes in (True, False):
                yield replace(step, block=-2, nbytes=trial, comes=comes)


def _requested(steps: Sequence[Step]) -> int:
    now = most = 0
    for step in steps:
        now += step.nbytes if step.comes else -step.nbytes
        most = max(most, now)
    return most


class _Pool:
    def __init__(
        self, variables: Sequence[int], slots_from: int, numbers: dict[int, int]
    ) -> None:
        self.allocator = BFCAllocator(PoolPolicy(limit_bytes=_LIMIT))
        self._numbers = numbers
        self._sizes = variables
        self._addresses = [
            self._initialized(size) if number < slots_from else self._take(size)
            for number, size in enumerate(variables)
        ]
        self._blocks: dict[int, int] = {}
        self._events: list[MemoryEvent] = []
        self._opening: list[Storage] = []

    def keep(self, sizes: Sequence[int]) -> None:
        """Take blocks that stay."""
        for size in sizes:
            self._take(size)

    def step(self, steps: Sequence[Step], batch: Sequence[int]) -> None:
        """Let one step happen."""
        self._opening, self._events = self._storages(), []
        self.allocator.clear_peak()
        inputs = [self._noted(size, "batch") for size in batch]
        for step in steps:
            self._come(step) if step.comes else self._go(step)
        results = set(self._blocks.values()) - set(self._addresses)
        self._blocks.clear()
        for address in (*results, *inputs):
            self._freed(address)

    def profile(self) -> Profile:
        """Return the last step."""
        trace = AllocatorTrace("BFC", DEVICE, "simulation", self._events, 256)
        return Profile([trace], self._opening, self._storages())

    def _storages(self) -> list[Storage]:
        pairs = enumerate(zip(self._addresses, self._sizes, strict=True))
        return [Storage(n, DEVICE, address, size) for n, (address, size) in pairs]

    def _initialized(self, size: int) -> int:
        """Make a variable of random numbers: two arrays more for a moment."""
        drawn = [self._take(size) for _ in range(2)] if size > _SMALL else []
        address = self._take(size)
        for temporary in drawn:
            self.allocator.free(temporary)
        return address

    def _take(self, size: int) -> int:
        address = self.allocator.allocate(max(size, 1))
        if address is None:
            raise MemoryError(f"No pool has room for this. Received: {size=}.")
        return address

    def _noted(self, size: int, name: str, *, is_scratch: bool = False) -> int:
        address = self._take(size)
        self._note(address, name, is_allocation=True, is_scratch=is_scratch)
        return address

    def _note(
        self, address: int, name: str, *, is_allocation: bool, is_scratch: bool = False
    ) -> None:
        chunk = self.allocator.chunk_at(address)
        change = 0 if is_allocation else -chunk.size
        self._events.append(
            MemoryEvent(
                time_ns=len(self._events),
                is_allocation=is_allocation,
                address=address,
                requested_bytes=chunk.requested,
                given_bytes=chunk.size,
                in_use_bytes=self.allocator.in_use_bytes + change,
                reserved_bytes=self.allocator.pool_bytes,
                operation=name,
                is_scratch=is_scratch,
            )
        )

    def _freed(self, address: int) -> None:
        self._note(address, "", is_allocation=False)
        self.allocator.free(address)

    def _come(self, step: Step) -> None:
        address = self._noted(
            step.nbytes, step.operation.name, is_scratch=step.is_scratch
        )
        self._blocks[step.block] = address
        variable = self._variable(step)
        if variable is not None:
            self._addresses[variable] = address

    def _go(self, step: Step) -> None:
        variable = self._variable(step)
        if step.block in self._blocks:
            self._freed(self._blocks.pop(step.block))
        elif variable is not None:
            self._freed(self._opening[variable].address or 0)

    def _variable(self, step: Step) -> int | None:
        return None if step.variable is None else self._numbers.get(step.variable)
