"""What is allocated and freed when operations run one after another."""

from dataclasses import dataclass, replace

from kerasmem.memory.program.operations import Op, Program, Tensor


@dataclass(frozen=True, slots=True)
class Event:
    """An allocation or a free.

    Args:
        block: what the memory is for: an owner of memory, or an operation for its
            scratch space.
        nbytes: bytes to allocate, 0 to free the block.
        op: the operation that asks.
    """

    block: Tensor | Op
    nbytes: int
    op: Op


class _Run:
    """One pass over the operations, with a count of readers per owner of memory."""

    def __init__(self, program: Program) -> None:
        self.events: list[Event] = []
        self.owner: dict[Tensor, Tensor] = {}
        self.alive = set(program.present)
        self.readers: dict[Tensor, int] = {}
        for op in program.ops:
            for x in op.reads:
                self.readers[x.root] = self.readers.get(x.root, 0) + 1
        for x in program.kept:
            self.readers[x.root] = self.readers.get(x.root, 0) + 1

    def play(self, op: Op, *, in_place: bool) -> None:
        for y in op.writes:
            if y.base is None and not (in_place and self._takes_over(op, y)):
                self.alive.add(y)
                self._ask(y, y.nbytes, op)
        if op.workspace:
            self._ask(op, op.workspace, op)
            self._ask(op, 0, op)
        for x in op.reads:
            self._release(self._memory(x), op)
        for y in op.writes:
            if not self.readers.get(self._memory(y)):
                self._free(self._memory(y), op)

    def _memory(self, x: Tensor) -> Tensor:
        return self.owner.get(x.root, x.root)

    def _takes_over(self, op: Op, y: Tensor) -> bool:
        for x in op.over:
            memory = self._memory(x)
            here = sum(self._memory(read) is memory for read in op.reads)
            if (
                memory in self.alive
                and memory.kind != "input"
                and x.nbytes == y.nbytes
                and self.readers[memory] == here
            ):
                self.owner[y] = memory
                self.readers[memory] += self.readers.get(y, 0)
                if y.kind == "gradient":
                    memory.kind = y.kind
                return True
        return False

    def _release(self, memory: Tensor, op: Op) -> None:
        if memory in self.alive:
            self.readers[memory] -= 1
            if not self.readers[memory]:
                self._free(memory, op)

    def _free(self, memory: Tensor, op: Op) -> None:
        if memory in self.alive:
            self.alive.remove(memory)
            self._ask(memory, 0, op)

    def _ask(self, block: Tensor | Op, nbytes: int, op: Op) -> None:
        # An allocator gives nothing for nothing.
        if nbytes or not isinstance(block, Tensor) or block.nbytes:
            self.events.append(Event(block, nbytes, op))


@dataclass(frozen=True)
class Plan:
    """What a step asks of its allocator.

    Args:
        events: allocations and frees, in order.
        owner: whose memory a tensor has taken over, for those that have.
    """

    events: tuple[Event, ...]
    owner: dict[Tensor, Tensor]


def plan(program: Program, *, in_place: bool) -> Plan:
    """Return what is allocated and freed.

    What an operation made is freed after its last reader, at once if it has none.

    Args:
        program: the step.
        in_place: whether an output may take the memory of an input that ends there.
    """
    run = _Run(program)
    for op in program.ops:
        run.play(op, in_place=in_place)
    return Plan(tuple(run.events), run.owner)


def with_trials(program: Program) -> Program:
    """Return a first step, in which libraries try out their algorithms."""
    ops = (replace(op, workspace=max(op.workspace, op.trial)) for op in program.ops)
    return replace(program, ops=tuple(ops))
