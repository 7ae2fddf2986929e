"""When the blocks of a graph come and go, as TensorFlow's executor runs it on a GPU.

All kernels of a GPU are cheap to start, so one thread starts them, first come, first
served; a tensor is freed when the last operation that reads it has been started. The
order was compared with recorded steps: it agrees but for neighbors.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kerasmem.backends.trace import Graph, Operation, Output
from kerasmem.memory.estimate.traced.kernels import (
    NOT_ALLOCATING,
    SHARING,
    output_bytes,
    scratch_bytes,
    writes_over,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A block comes or goes.

    Args:
        block: a number for the block, -1 for that of a variable before the step.
        nbytes: its size.
        operation: that allocated it.
        comes: whether it is allocated.
        is_scratch: whether the operation takes it only while it runs.
        variable: index of the operation whose variable lies in it from then on.
    """

    block: int
    nbytes: int
    operation: Operation
    comes: bool
    is_scratch: bool = False
    variable: int | None = None


@dataclass
class _Block:
    number: int
    nbytes: int
    readers: int
    made_by: Operation | None
    variable: int | None = None


def execute(graph: Graph, scratch: str | None = "gpu") -> list[Step]:
    """Return what happens in one step.

    Args:
        graph: the graph.
        scratch: the device, `"gpu"` or `"cpu"`, whose kernels' scratch memory is taken;
            None for none.
    """
    return list(_Execution(graph, scratch).run())


class _Execution:
    def __init__(self, graph: Graph, scratch: str | None) -> None:
        self._operations = graph.operations
        self._scratch = scratch
        self._beside: list[Step] = []  # scratch of what another thread still runs
        self._blocks: dict[tuple[int, int], _Block | None] = {}
        self._variables: dict[int, _Block] = {}
        self._reads = _reads(graph)
        self._made = 0

    def run(self) -> Iterator[Step]:
        followers, waiting = _order(self._operations)
        ready = deque(n for n, count in enumerate(waiting) if count == 0)
        while ready:
            number = ready.popleft()
            yield from self._run(number, self._operations[number])
            for follower in followers[number]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    ready.append(follower)
        yield from self._beside

    def _run(self, number: int, operation: Operation) -> Iterator[Step]:
        inputs = [self._operations[i].outputs[k] for i, k in operation.inputs]
        taken = []
        if self._scratch is not None and operation.kind not in NOT_ALLOCATING:
            for size in scratch_bytes(operation, inputs, self._scratch):
                block = self._new(size, operation)
                yield _scratch(block, operation, comes=True)
                taken.append(block)
        made: list[Step] = []
        for place, block in enumerate(self._outputs(number, operation, inputs, made)):
            self._hold((number, place), block)
        yield from made
        yield from self._given_back(
            [_scratch(block, operation, comes=False) for block in taken]
        )
        yield from self._release(number, operation)

    def _given_back(self, scratch: list[Step]) -> list[Step]:
        """Return the scratch that goes: on a CPU that of the operation before.

        Two threads run the two gradients of a convolution at once.
        """
        if self._scratch != "cpu" or not scratch:
            return scratch
        gone, self._beside = self._beside, scratch
        return gone

    def _outputs(
        self,
        number: int,
        operation: Operation,
        inputs: Sequence[Output],
        made: list[Step],
    ) -> Sequence[_Block | None]:
        """Return the block of each output; new ones are noted in `made`."""
        kind = operation.kind
        sources = [self._blocks.get(tensor) for tensor in operation.inputs]
        if kind == "VarHandleOp":
            block = _Block(-1, operation.outputs[0].nbytes, 1, None, variable=number)
            self._variables[number] = block
            return (None,)
        if kind == "ReadVariableOp":
            return (self._variables.get(self._variable(operation)),)
        if kind in {"AssignAddVariableOp", "AssignSubVariableOp"}:
            self._update(operation, made)
            return ()
        if kind in NOT_ALLOCATING:
            return (None,) * len(operation.outputs)
        if kind in SHARING:
            return sources if kind == "IdentityN" else sources[:1]
        return self._results(operation, inputs, made)

    def _results(
        self, operation: Operation, inputs: Sequence[Output], made: list[Step]
    ) -> list[_Block | None]:
        blocks: list[_Block | None] = []
        for place in range(len(operation.outputs)):
            size = output_bytes(operation, place, inputs)
            block = self._taken_over(operation, inputs, size) if place == 0 else None
            if block is None and size:
                block = self._new(size, operation)
                made.append(Step(block.number, size, operation, comes=True))
            blocks.append(block)
        return blocks

    def _taken_over(
        self, operation: Operation, inputs: Sequence[Output], size: int
    ) -> _Block | None:
        for place in writes_over(operation):
            block = self._blocks.get(operation.inputs[place])
            if block is None or block.variable is not None or block.made_by is None:
                continue
            fits = block.nbytes == size == inputs[place].nbytes
            if fits and block.readers == 1:
                return block
        return None

    def _update(self, operation: Operation, made: list[Step]) -> None:
        """Write to a variable: to a copy of it while somebody else still reads it."""
        variable = self._variable(operation)
        old = self._variables[variable]
        if old.readers > 1:
            new = self._new(old.nbytes, operation)
            new.readers, new.variable = 1, variable
            made.append(
                Step(new.number, new.nbytes, operation, comes=True, variable=variable)
            )
            self._variables[variable] = new
            made.extend(self._let_go(old))

    def _variable(self, operation: Operation) -> int:
        source = operation.inputs[0][0]
        while self._operations[source].kind == "Identity":
            source = self._operations[source].inputs[0][0]
        return source

    def _new(self, size: int, operation: Operation) -> _Block:
        self._made += 1
        return _Block(self._made, size, 0, operation)

    def _hold(self, tensor: tuple[int, int], block: _Block | None) -> None:
        self._blocks[tensor] = block
        if block is not None:
            block.readers += self._reads[tensor]

    def _release(self, number: int, operation: Operation) -> Iterator[Step]:
        for place in range(len(operation.outputs)):
            block = self._blocks.get((number, place))
            if block is not None and block.readers == 0:
                yield self._gone(block)
        for tensor in operation.inputs:
            block = self._blocks.get(tensor)
            if block is not None:
                yield from self._let_go(block)

    def _let_go(self, block: _Block) -> Iterator[Step]:
        block.readers -= 1
        if block.readers == 0:
            yield self._gone(block)

    def _gone(self, block: _Block) -> Step:
        maker = block.made_by or self._operations[block.variable or 0]
        return Step(
            block.number, block.nbytes, maker, comes=False, variable=block.variable
        )


def _scratch(block: _Block, operation: Operation, *, comes: bool) -> Step:
    return Step(block.number, block.nbytes, operation, comes=comes, is_scratch=True)


def _reads(graph: Graph) -> dict[tuple[int, int], int]:
    """Return how often each tensor is read, by the caller too."""
    reads: dict[tuple[int, int], int] = defaultdict(int)
    for operation in graph.operations:
        for tensor in operation.inputs:
            reads[tensor] += 1
    for tensor in graph.results:
        reads[tensor] += 1
    return reads


def _order(operations: Sequence[Operation]) -> tuple[list[list[int]], list[int]]:
    """Return who waits for each operation, and for how many each one waits."""
    followers: list[list[int]] = [[] for _ in operations]
    waiting = [0] * len(operations)
    for number, operation in enumerate(operations):
        for source in (*(i for i, _ in operation.inputs), *operation.after):
            followers[source].append(number)
            waiting[number] += 1
    return followers, waiting
