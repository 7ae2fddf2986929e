"""A step as a program: operations that read and write tensors.

The tables of layers, TensorFlow's graph, torch's fake tensors and HLO write programs;
one liveness pass and one interface of allocators read them.
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.memory.allocator.torch_allocator import Allocator, RoundingAllocator
from kerasmem.records import EstimatePart

_SMALL = 64

Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class ProgramTensor:
    """A value in memory.

    Args:
        shape: its shape.
        width: bytes of one entry.
        layer: path of the layer that made it.
        base: the tensor whose memory it looks into, None if it has its own.
        kind: `"value"`, `"parameter"` or `"optimizer_state"` (they live outside of the
            step), `"input"` or `"gradient"` (of a parameter).
        differentiable: whether the backward pass computes its gradient, because a
            trainable variable is upstream.
        layout: how its entries lie: `"last"` or `"first"` for the channels.
    """

    shape: Shape
    width: int
    layer: str | None = None
    base: "ProgramTensor | None" = None
    kind: str = "value"
    differentiable: bool = False
    layout: str = "last"

    @property
    def nbytes(self) -> int:
        """Bytes of its entries."""
        return math.prod(self.shape) * self.width

    @property
    def root(self) -> "ProgramTensor":
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
    reads: tuple[ProgramTensor, ...]
    writes: tuple[ProgramTensor, ...]
    over: tuple[ProgramTensor, ...] = ()
    workspace: int = 0
    trial: int = 0
    fusible: bool = False
    reduces: bool = False
    call: int | None = None


Block = ProgramTensor | Op
"""What memory is for: an owner of memory, or an operation for its scratch space."""


@dataclass(frozen=True)
class Program:
    """The operations of a step, in the order in which they run.

    Args:
        ops: the operations.
        results: tensors that outlive them.
        present: tensors that are there before, such as variables.
        successors: for a present tensor, that which the step leaves in its place.
        unknown: classes of layers of which only inputs and outputs are in it.
    """

    ops: tuple[Op, ...]
    results: tuple[ProgramTensor, ...] = ()
    present: tuple[ProgramTensor, ...] = ()
    successors: Mapping[ProgramTensor, ProgramTensor] = field(
        default_factory=dict[ProgramTensor, ProgramTensor]
    )
    unknown: frozenset[str] = frozenset()


def as_written(ops: Sequence[Op], _results: Sequence[ProgramTensor]) -> list[Op]:
    """Return the operations one after another, as an eager framework runs them."""
    return list(ops)


def as_ready(ops: Sequence[Op], _results: Sequence[ProgramTensor]) -> list[Op]:
    """Return the operations in the order of TensorFlow's executor on a GPU."""
    maker = {y: number for number, op in enumerate(ops) for y in op.writes}
    before = [{maker[x.root] for x in op.reads if x.root in maker} for op in ops]
    return [ops[number] for number in by_readiness(before)]


def by_readiness(
    before: Sequence[Collection[int]], *, by_number: bool = False
) -> list[int]:
    """Return the numbers of operations in the order of TensorFlow's executor on a GPU.

    Launching a kernel costs it nothing, so one thread takes what is ready, first come,
    first served, and puts what has become ready to the end of the queue. The order was
    compared with recorded steps: it agrees but for neighbors.

    Args:
        before: for each operation, those that must have run, each once.
        by_number: whether of what is ready the lowest number runs first.
    """
    users: list[list[int]] = [[] for _ in before]
    missing = [len(earlier) for earlier in before]
    for number, earlier in enumerate(before):
        for one in earlier:
            users[one].append(number)
    queue = [(number, number) for number, count in enumerate(missing) if not count]
    order: list[int] = []
    while queue:
        order.append(number := heapq.heappop(queue)[1])
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                place = user if by_number else len(before) + len(order)
                heapq.heappush(queue, (place, user))
    return order


@dataclass(frozen=True, slots=True)
class Event:
    """An allocation or a free.

    Args:
        block: what the memory is for.
        nbytes: bytes to allocate, 0 to free the block.
        op: the operation that asks.
    """

    block: Block
    nbytes: int
    op: Op


class AllocationPlan:
    """What a step asks of its allocator.

    What an operation made is freed after its last reader, at once if it has none.

    Args:
        program: the step.
        in_place: whether an output may take the memory of an input that ends there.
        is_first: whether it is a first step, in which libraries try out their
            algorithms.

    Attributes:
        program: the step.
        events: allocations and frees, in order.
        owner: whose memory a tensor has taken over, for those that have.
    """

    def __init__(
        self, program: Program, *, in_place: bool, is_first: bool = False
    ) -> None:
        self.program = program
        self._is_first = is_first
        self.events: list[Event] = []
        self.owner: dict[ProgramTensor, ProgramTensor] = {}
        self._live = set(program.present)
        read = [x.root for op in program.ops for x in op.reads]
        self._readers = Counter([*read, *(x.root for x in program.results)])
        for op in program.ops:
            self._play(op, in_place=in_place)

    def residuals(self) -> set[ProgramTensor]:
        """Return the memory that the forward pass fills and a later phase reads."""
        forward_tensors: set[ProgramTensor] = set()
        later: set[ProgramTensor] = set()
        for op in self.program.ops:
            if op.phase == "forward":
                forward_tensors.update(op.writes)
            elif op.phase in ("backward", "optimizer"):
                later.update(x.root for x in op.reads)
        return {self._memory(x) for x in forward_tensors & later}

    def _play(self, op: Op, *, in_place: bool) -> None:
        for y in op.writes:
            if y.base is None and not (in_place and self._takes_over(op, y)):
                self._live.add(y)
                self._ask(y, y.nbytes, op)
        workspace = max(op.workspace, op.trial) if self._is_first else op.workspace
        if workspace:
            self._ask(op, workspace, op)
            self._ask(op, 0, op)
        for x in op.reads:
            memory = self._memory(x)
            if memory in self._live:
                self._readers[memory] -= 1
                self._free_if_unread(memory, op)
        for y in op.writes:
            self._free_if_unread(self._memory(y), op)

    def _memory(self, x: ProgramTensor) -> ProgramTensor:
        return self.owner.get(x.root, x.root)

    def _takes_over(self, op: Op, y: ProgramTensor) -> bool:
        for x in op.over:
            memory = self._memory(x)
            here = sum(self._memory(read) is memory for read in op.reads)
            if (
                memory in self._live
                and memory.kind != "input"
                and x.nbytes == y.nbytes
                and self._readers[memory] == here
            ):
                self.owner[y] = memory
                self._readers[memory] += self._readers[y]
                if y.kind == "gradient":
                    memory.kind = y.kind
                return True
        return False

    def _free_if_unread(self, memory: ProgramTensor, op: Op) -> None:
        if memory in self._live and not self._readers[memory]:
            self._live.remove(memory)
            self._ask(memory, 0, op)

    def _ask(self, block: Block, nbytes: int, op: Op) -> None:
        # An allocator gives nothing for nothing.
        if nbytes or not isinstance(block, ProgramTensor) or block.nbytes:
            self.events.append(Event(block, nbytes, op))


@dataclass(frozen=True)
class Peak:
    """The moment of a step in which most is in use.

    Args:
        nbytes: bytes in use, as the allocator gave them.
        uses: the blocks in use with the bytes asked for.
    """

    nbytes: int
    uses: tuple[tuple[Block, int], ...]

    @property
    def requested_bytes(self) -> int:
        """The bytes asked for of all blocks in use."""
        return sum(nbytes for _, nbytes in self.uses)


def peak_of(
    events: Sequence[Event], rounding: int, present: Sequence[ProgramTensor] = ()
) -> Peak:
    """Return the peak of a step whose blocks are rounded up to a multiple."""
    memory = RoundingAllocator(rounding)
    at: dict[Block, int] = {x: memory.allocate(x.nbytes) for x in present}
    return _run(events, memory, at, present)


def unlimited_bfc() -> BFCAllocator:
    """Return TensorFlow's and XLA's allocator, empty, without a limit."""
    return BFCAllocator(PoolPolicy(limit_bytes=1 << 62))


def live(plans: Sequence[AllocationPlan], memory: Allocator) -> tuple[list[Peak], int]:
    """Run steps one after another in an allocator, once it has made the variables.

    Args:
        plans: of programs with the same present tensors.
        memory: an empty allocator.

    Returns:
        The peak of each step, and the bytes that the allocator took from the device.
    """
    addresses = [_initialized(memory, x) for x in plans[0].program.present]
    peaks = []
    for plan in plans:
        step = plan.program
        at: dict[Block, int] = dict(zip(step.present, addresses, strict=True))
        peaks.append(_run(plan.events, memory, at, step.present))
        survivors = (step.successors.get(x, x) for x in step.present)
        addresses = [at.pop(plan.owner.get(x, x)) for x in survivors]
        for address in at.values():
            memory.free(address)
    return peaks, memory.pool_bytes


def _initialized(memory: Allocator, x: ProgramTensor) -> int:
    is_drawn = x.kind == "parameter" and x.nbytes > _SMALL
    *temporaries, address = (
        _taken(memory, x.nbytes) for _ in range(3 if is_drawn else 1)
    )
    for temporary in temporaries:
        memory.free(temporary)
    return address


def _taken(memory: Allocator, size: int) -> int:
    address = memory.allocate(max(size, 1))
    if address is None:
        raise MemoryError(f"No pool has room for this. Received: {size=}.")
    return address


def _run(
    events: Sequence[Event], memory: Allocator, at: dict[Block, int], present: Iterable
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


def parts_of(
    planned: AllocationPlan,
    peak: Peak,
    stored: Sequence[EstimatePart] = (),
    **extra: int,
) -> tuple[EstimatePart, ...]:
    """Return the parts of a peak: one per category and layer, most bytes first.

    Args:
        planned: the step.
        peak: its peak.
        stored: what is there before the step, one per variable.
        extra: bytes that belong to no layer, by category.
    """
    residuals = planned.residuals()
    sums: Counter[tuple[str, str | None]] = Counter()
    for part in stored:
        sums[part.category, part.layer] += part.nbytes
    for block, size in peak.uses:
        category = "workspace" if isinstance(block, Op) else block.kind
        if category == "value":
            category = "activation" if block in residuals else "temporary"
        sums[category, block.layer] += size
    for category, size in extra.items():
        sums[category, None] += size
    return tuple(EstimatePart(*key, size) for key, size in sums.most_common() if size)
