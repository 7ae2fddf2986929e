"""Represents a step as a program: operations that read and write tensors.

Programs are built from layer tables, TensorFlow graphs, torch fake tensors and HLO. One
liveness pass and one allocator interface evaluate all of them.
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kerasmem.memory.allocator import BFCAllocator, PoolPolicy
from kerasmem.records import EstimatePart

_SMALL = 64

Shape = tuple[int, ...]


@dataclass(eq=False, slots=True)
class ProgramTensor:
    """A tensor in memory.

    Args:
        shape: Shape of the tensor.
        width: Bytes per entry.
        layer: Path of the layer that computes the tensor.
        base: The tensor that owns the memory of this view, or `None`.
        kind: `"value"`, `"input"`, `"gradient"` (of a parameter), or `"parameter"` or
            `"optimizer_state"`, which exist outside of the step.
        differentiable: Whether the backward pass computes a gradient, because the
            tensor depends on a trainable variable.
        layout: `"last"` or `"first"`. Position of the channels in memory.
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
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * self.width

    @property
    def root(self) -> "ProgramTensor":
        """The tensor that owns the memory."""
        return self if self.base is None else self.base


@dataclass(eq=False, slots=True)
class Op:
    """An operation.

    Args:
        name: Name of the operation, such as `"matmul"`.
        layer: Path of the layer that contains the operation.
        phase: `"forward"`, `"backward"` or `"optimizer"`.
        reads: Input tensors.
        writes: Output tensors.
        over: Inputs whose memory the output may reuse after their last use.
        workspace: Bytes of scratch space during the operation.
        trial: Bytes of scratch space for autotuning in the first step, if larger.
        fusible: Whether XLA fuses this element-wise operation into its consumers.
        reduces: Whether the operation is a reduction, which XLA fuses with its inputs.
        call: Index of the model call that contains the operation, or `None`.
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
"""Owner of a memory block: a tensor, or an operation for its scratch space."""


@dataclass(frozen=True)
class Program:
    """The operations of a step in execution order.

    Args:
        ops: The operations.
        results: Tensors that are still needed after the step.
        present: Tensors that exist before the step, such as variables.
        successors: Maps a present tensor to its replacement after the step.
        unknown: Layer classes for which only inputs and outputs are included.
    """

    ops: tuple[Op, ...]
    results: tuple[ProgramTensor, ...] = ()
    present: tuple[ProgramTensor, ...] = ()
    successors: Mapping[ProgramTensor, ProgramTensor] = field(
        default_factory=dict[ProgramTensor, ProgramTensor]
    )
    unknown: frozenset[str] = frozenset()


def as_written(ops: Sequence[Op], _results: Sequence[ProgramTensor]) -> list[Op]:
    """Return the operations in program order, as an eager framework runs them."""
    return list(ops)


def as_ready(ops: Sequence[Op], _results: Sequence[ProgramTensor]) -> list[Op]:
    """Return the operations in the order of TensorFlow's executor on a GPU."""
    maker = {y: number for number, op in enumerate(ops) for y in op.writes}
    before = [{maker[x.root] for x in op.reads if x.root in maker} for op in ops]
    return [ops[number] for number in by_readiness(before)]


def by_readiness(
    before: Sequence[Collection[int]], *, by_number: bool = False
) -> list[int]:
    """Return operation numbers in the order of TensorFlow's executor on a GPU.

    Launching a kernel is cheap, so one thread runs ready operations first in, first
    out. Compared with recorded steps, only neighboring operations differ in order.
    `before` contains the distinct predecessors of each operation. With `by_number`, the
    ready operation with the lowest number runs first.
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

    `nbytes` is 0 for a free.
    """

    block: Block
    nbytes: int
    op: Op


class AllocationPlan:
    """The allocations and frees of a step.

    An output is freed after its last reader, or immediately without readers.

    Args:
        program: The step.
        in_place: Whether an output may reuse the memory of an input after its last use.
        is_first: Whether the step is the first one, in which libraries autotune.

    Attributes:
        program: The step.
        events: Allocations and frees in order.
        owner: Maps a tensor to the tensor whose memory it reuses.
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
        """Return tensors that the forward pass writes and a later phase reads."""
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
        # Allocators ignore requests of zero bytes.
        if nbytes or not isinstance(block, ProgramTensor) or block.nbytes:
            self.events.append(Event(block, nbytes, op))


class RoundingAllocator:
    """Counts blocks rounded up to a multiple, so more bytes never reduce the sum."""

    def __init__(self, rounding: int) -> None:
        self.in_use_bytes = 0
        self._rounding = rounding
        self._sizes: dict[int, int] = {}
        self._next = 0

    def allocate(self, size: int) -> int:
        """Allocate a block and return its number."""
        self._next += 1
        size = self._sizes[self._next] = -(-size // self._rounding) * self._rounding
        self.in_use_bytes += size
        return self._next

    def free(self, address: int) -> None:
        """Free a block."""
        self.in_use_bytes -= self._sizes.pop(address)


Allocator = BFCAllocator | RoundingAllocator
"""An allocator with `allocate(size)` and `free(address)`."""


@dataclass(frozen=True)
class Peak:
    """The point of a step at which most memory is in use.

    `nbytes` includes rounding by the allocator. `uses` contains requested bytes.
    """

    nbytes: int
    uses: tuple[tuple[Block, int], ...]

    @property
    def requested_bytes(self) -> int:
        """Requested bytes of all blocks in use."""
        return sum(nbytes for _, nbytes in self.uses)


def peak_of(
    events: Sequence[Event], rounding: int, present: Sequence[ProgramTensor] = ()
) -> Peak:
    """Return the peak of a step whose block sizes are rounded up to a multiple."""
    memory = RoundingAllocator(rounding)
    at: dict[Block, int] = {x: memory.allocate(x.nbytes) for x in present}
    return _run(events, memory, at, present)


def unlimited_bfc() -> BFCAllocator:
    """Return an empty BFC allocator (TensorFlow and XLA) without a limit."""
    return BFCAllocator(PoolPolicy(limit_bytes=1 << 62))


def live(plans: Sequence[AllocationPlan], memory: Allocator) -> list[Peak]:
    """Simulate consecutive steps in an allocator after creating the variables.

    Returns the peak of each step.
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
    return peaks


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
        raise MemoryError(f"The pools are too small for this block. Received: {size=}.")
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
    """Return the parts of a peak per category and layer, largest first.

    `stored` contains parts that exist before the step. `extra` contains bytes without a
    layer, by category.
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
