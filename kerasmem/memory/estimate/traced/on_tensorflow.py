"""Converts TensorFlow's graph of a step to a program and simulates its allocations."""

from collections.abc import Sequence
from dataclasses import replace

from kerasmem.backends.trace import Graph, Operation, tracer
from kerasmem.errors import ModelError
from kerasmem.memory import program as pg
from kerasmem.memory.estimate.inputs import as_tensors, symbolic_batch
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.traced import kernels
from kerasmem.memory.program import Op, Program, ProgramTensor
from kerasmem.memory.timeline import Watched, watched
from kerasmem.memory.timeline.names import Names
from kerasmem.records import MemoryEstimate
from kerasmem.units import GIB

_TRIAL_FACTOR = 16
_LARGEST_TRIAL = 3 * GIB // 2
"""Scratch space of cuDNN's autotuning relative to the chosen algorithm, and its limit.
The factor is the maximum in recorded first steps. cuDNN does not document it."""

# 90 % of the cases measured on a GPU are between these multiples of the estimate.
_LOW, _HIGH = 0.90, 1.12
_IN_CUDNN = 0.7, 1.5
"""Bounds for recurrent layers in cuDNN, whose scratch space is not documented."""
_LOOPS = frozenset({"LoopCond", "StatelessWhile", "While"})  # Lowered or not.
_UPDATES = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})


def estimate_in_process(request: Request) -> MemoryEstimate:
    """Estimate the memory of a step that TensorFlow does not compile.

    Raises:
        ModelError: If the step contains a loop, whose memory is not part of the graph.
    """
    model, variables = watched(request.model)
    graph = tracer().step_graph(
        variables,
        symbolic_batch(request),
        step=request.step,
        on_gpu=request.device == "gpu",
    )
    loops = [op.name for op in graph.operations if op.kind in _LOOPS]
    if loops:
        raise ModelError(
            f"The step of {request.model.name!r} contains a loop, whose memory per "
            "iteration is not part of the graph. Expected: a step without loops. "
            f"Received: {loops[0]!r}. Next: pass method='measured'."
        )
    step = written(graph, model, request.device)
    plan = pg.AllocationPlan(step, in_place=True)
    plans = [pg.AllocationPlan(step, in_place=True, is_first=True), plan, plan]
    first, *_, later = pg.live(plans, pg.unlimited_bfc())
    requested_bytes = pg.peak_of(plan.events, 1, step.present).nbytes
    uses_cudnn = any(op.kind.startswith("CudnnRNN") for op in graph.operations)
    below, above = _IN_CUDNN if uses_cudnn else (_LOW, _HIGH)
    low, high = (
        min(requested_bytes, round(below * later.nbytes)),
        round(above * later.nbytes),
    )
    if not request.training:
        # Every batch with a new length is a first step.
        high = max(high, first.nbytes)
    return request.answer(
        "traced",
        pg.parts_of(plan, later, rounding=later.nbytes - later.requested_bytes),
        (low, later.nbytes, high),
        (None, first.nbytes, None),
    )


def written(graph: Graph, model: Watched, device: str | None = "gpu") -> Program:
    """Return the program of a step.

    The batch is allocated first and stays until the end. A variable that is updated
    while another operation reads it moves to a copy. With `device=None`, scratch space
    is excluded.
    """
    return _Writer(graph, model, device).written()


class _Writer:
    def __init__(self, graph: Graph, model: Watched, device: str | None) -> None:
        self._graph = graph
        self._operations = graph.operations
        self._names = Names(model, "tensorflow")
        self._trained = model.trained_sizes()
        self._device = device
        self._phase = "unknown"
        # Scratch space of an operation that still runs in another thread.
        self._scratch: tuple[ProgramTensor, ...] = ()
        self._of: dict[tuple[int, int], ProgramTensor] = {}
        self._ops: list[Op] = []
        self._first = as_tensors(model)
        self._handles = {
            number: self._first[operation.attributes["variable"]]
            for number, operation in enumerate(self._operations)
            if "variable" in operation.attributes
        }
        self._last = dict(self._handles)

    def written(self) -> Program:
        constants, batch = self._outside("Const"), self._outside("Placeholder")
        self._ops.append(Op("input", None, "input", (), batch))
        # Inputs and control dependencies of each operation.
        before = [
            dict.fromkeys((*(i for i, _ in operation.inputs), *operation.after))
            for operation in self._operations
        ]
        for number in pg.by_readiness(before):
            self._write(number, self._operations[number])
        self._mark_gradients()
        results = [self._of[x] for x in self._graph.results if x in self._of]
        last = [self._last[number] for number in self._handles]
        unread = {*self._first} - {*self._handles.values()}
        return Program(
            ops=tuple(self._ops),
            results=(*batch, *constants, *results, *last, *unread),
            present=(*self._first, *constants),
            successors=dict(zip(self._handles.values(), last, strict=True)),
        )

    def _outside(self, kind: str) -> tuple[ProgramTensor, ...]:
        return tuple(
            ProgramTensor(
                (output.nbytes,), 1, kind="input" if kind != "Const" else "value"
            )
            for operation in self._operations
            if operation.kind == kind
            for output in operation.outputs
            if output.nbytes
        )

    def _write(self, number: int, operation: Operation) -> None:
        kind = operation.kind
        sources = [self._of.get(x) for x in operation.inputs]
        if kind in _UPDATES:
            self._update(operation, sources)
        elif kind == "ReadVariableOp":
            self._alias(number, [self._last.get(self._variable(operation))])
            self._note(operation, sources)
        elif kind in kernels.SHARING:
            self._alias(number, sources if kind == "IdentityN" else sources[:1])
            self._note(operation, sources)
        elif kind in kernels.NOT_ALLOCATING:
            self._note(operation, sources)
        else:
            self._compute(number, operation, sources)

    def _alias(self, number: int, sources: Sequence[ProgramTensor | None]) -> None:
        for place, x in enumerate(sources):
            if x is not None:
                self._of[number, place] = replace(x, base=x.root)

    def _compute(
        self, number: int, operation: Operation, sources: Sequence[ProgramTensor | None]
    ) -> None:
        inputs = [self._operations[i].outputs[k] for i, k in operation.inputs]
        outputs = []
        for place in range(len(operation.outputs)):
            size = kernels.output_bytes(operation, place, inputs)
            if size:
                self._of[number, place] = ProgramTensor((size,), 1)
                outputs.append(self._of[number, place])
        over = [
            x
            for place in kernels.writes_over(operation)
            if (x := sources[place]) is not None
            and x.root.kind == "value"
            and x.nbytes == inputs[place].nbytes
        ]
        # Only the first output can reuse an input.
        over = over if (number, 0) in self._of else []
        op = self._note(operation, sources, outputs, over)
        if self._device is not None:
            sizes = kernels.scratch_bytes(operation, inputs, self._device)
            self._take_scratch(op, operation.kind, sizes)

    def _update(
        self, operation: Operation, sources: Sequence[ProgramTensor | None]
    ) -> None:
        variable = self._variable(operation)
        old = self._last.get(variable)
        if old is None:  # The variable does not belong to the model.
            self._note(operation, sources)
            return
        new = self._last[variable] = ProgramTensor(
            old.shape, 1, old.layer, kind=old.kind
        )
        self._note(operation, [*sources, old], [new], [old])

    def _mark_gradients(self) -> None:
        backward_results = {
            y for op in self._ops if op.phase == "backward" for y in op.writes
        }
        read = (x.root for op in self._ops if op.phase == "optimizer" for x in op.reads)
        for y in read:
            if (
                y in backward_results
                and y.kind == "value"
                and y.nbytes in self._trained
            ):
                y.kind = "gradient"

    def _variable(self, operation: Operation) -> int:
        source = operation.inputs[0][0]
        while self._operations[source].kind == "Identity":
            source = self._operations[source].inputs[0][0]
        return source

    def _note(
        self,
        operation: Operation,
        sources: Sequence[ProgramTensor | None],
        outputs: Sequence[ProgramTensor] = (),
        over: Sequence[ProgramTensor] = (),
    ) -> Op:
        origin = self._names.origin(operation.name)
        if origin.phase != "unknown":
            self._phase = origin.phase
        for y in outputs:
            y.layer = y.layer or origin.layer
        reads = tuple(x for x in sources if x is not None)
        sides = (reads, tuple(outputs), tuple(over))
        op = Op(operation.name, origin.layer, self._phase, *sides)
        self._ops.append(op)
        return op

    def _take_scratch(self, op: Op, kind: str, sizes: Sequence[int]) -> None:
        """Add scratch blocks that only `op` reads.

        On a CPU, two threads run the two gradients of a convolution at once. The blocks
        are then freed after the next operation with scratch space.
        """
        if not sizes:
            return
        blocks = tuple(
            ProgramTensor((n,), 1, op.layer, kind="workspace") for n in sizes
        )
        new_ops = [Op(op.name, op.layer, op.phase, (), blocks)]
        if kind in kernels.CONVOLUTIONS and self._device == "gpu":
            trials = (min(_TRIAL_FACTOR * size, _LARGEST_TRIAL) for size in sizes)
            new_ops += [
                Op("trial", op.layer, op.phase, (), (), trial=n) for n in trials
            ]
        self._ops[-1:] = [*new_ops, op]
        op.reads = (*op.reads, *blocks, *self._scratch)
        if self._device == "cpu":
            self._scratch = blocks
