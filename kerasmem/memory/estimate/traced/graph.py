"""TensorFlow's graph of a step as a program, as its executor runs it."""

from collections.abc import Sequence
from dataclasses import replace

from kerasmem.backends.trace import Graph, Operation, Output
from kerasmem.memory.estimate.traced.batch import as_tensors
from kerasmem.memory.estimate.traced.kernels import (
    CONVOLUTIONS,
    NOT_ALLOCATING,
    SHARING,
    output_bytes,
    scratch_bytes,
    writes_over,
)
from kerasmem.memory.program import Op, Program, Tensor
from kerasmem.memory.program.order import by_readiness
from kerasmem.memory.timeline import Watched
from kerasmem.memory.timeline.names import Names
from kerasmem.units import GIB

_TRIAL_FACTOR = 16
_LARGEST_TRIAL = 3 * GIB // 2
"""How much cuDNN takes in the first step to try algorithms, nobody tells; this is the
largest multiple of what the chosen algorithm takes that recorded first steps showed, up
to a limit."""

_UPDATES = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})


def written(graph: Graph, model: Watched, device: str | None = "gpu") -> Program:
    """Return the program of a step.

    The batch comes first and stays; a variable that is still read while it is updated
    moves to a copy.

    Args:
        graph: the step.
        model: whose variables it changes; the graph names them by number.
        device: `"gpu"` or `"cpu"`, whose kernels' scratch memory is taken; None for
            none.
    """
    return _Writer(graph, model, device).program()


class _Writer:
    def __init__(self, graph: Graph, model: Watched, device: str | None) -> None:
        self._graph = graph
        self._operations = graph.operations
        self._names = Names(model, "tensorflow")
        self._trained = {v.nbytes for v in model.variables if v.is_trained}
        self._device = device
        self._phase = "unknown"
        self._scratch: tuple[Tensor, ...] = ()  # of what another thread still runs
        self._of: dict[tuple[int, int], Tensor] = {}
        self._ops: list[Op] = []
        self._first = as_tensors(model)
        self._handles = {
            number: self._first[operation.attributes["variable"]]
            for number, operation in enumerate(self._operations)
            if "variable" in operation.attributes
        }
        self._last = dict(self._handles)

    def program(self) -> Program:
        constants, batch = (self._outside(kind) for kind in ("Const", "Placeholder"))
        self._ops.append(Op("input", None, "input", (), batch))
        for number in by_readiness(_before(self._operations)):
            self._write(number, self._operations[number])
        self._mark_gradients()
        results = [self._of[x] for x in self._graph.results if x in self._of]
        last = [self._last[number] for number in self._handles]
        untouched = {*self._first} - {*self._handles.values()}
        return Program(
            ops=tuple(self._ops),
            kept=(*batch, *constants, *results, *last, *untouched),
            present=(*self._first, *constants),
            successors=dict(zip(self._handles.values(), last, strict=True)),
        )

    def _outside(self, kind: str) -> tuple[Tensor, ...]:
        return tuple(
            Tensor((output.nbytes,), 1, kind="input" if kind != "Const" else "value")
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
            return
        if kind not in NOT_ALLOCATING | SHARING and kind != "ReadVariableOp":
            self._compute(number, operation, sources)
            return
        if kind == "ReadVariableOp":
            self._alias(number, [self._last.get(self._variable(operation))])
        elif kind in SHARING:
            self._alias(number, sources if kind == "IdentityN" else sources[:1])
        self._note(operation, sources, ())

    def _alias(self, number: int, sources: Sequence[Tensor | None]) -> None:
        for place, x in enumerate(sources):
            if x is not None:
                self._of[number, place] = replace(x, base=x.root)

    def _compute(
        self, number: int, operation: Operation, sources: Sequence[Tensor | None]
    ) -> None:
        inputs = [self._operations[i].outputs[k] for i, k in operation.inputs]
        made = []
        for place in range(len(operation.outputs)):
            size = output_bytes(operation, place, inputs)
            if size:
                self._of[number, place] = Tensor((size,), 1)
                made.append(self._of[number, place])
        over = [
            x
            for place in writes_over(operation)
            if (x := sources[place]) is not None
            and x.root.kind == "value"
            and x.nbytes == inputs[place].nbytes
        ]
        # Only the first output may be written over an input.
        over = over if (number, 0) in self._of else []
        self._note(operation, sources, made, over, self._scratch_of(operation, inputs))

    def _scratch_of(
        self, operation: Operation, inputs: Sequence[Output]
    ) -> Sequence[int]:
        if self._device is None:
            return ()
        return scratch_bytes(operation, inputs, self._device)

    def _update(self, operation: Operation, sources: Sequence[Tensor | None]) -> None:
        """Write to a variable: to a copy of it while somebody else still reads it."""
        variable = self._variable(operation)
        old = self._last.get(variable)
        if old is None:  # of nobody that the model knows
            self._note(operation, sources, ())
            return
        new = self._last[variable] = Tensor(old.shape, 1, old.layer, kind=old.kind)
        self._note(operation, [*sources, old], [new], [old])

    def _mark_gradients(self) -> None:
        """Name what is made backward, is as large as a weight and read to update it."""
        made = {y for op in self._ops if op.phase == "backward" for y in op.writes}
        for op in self._ops:
            if op.phase == "optimizer":
                for x in op.reads:
                    y = x.root
                    if y in made and y.kind == "value" and y.nbytes in self._trained:
                        y.kind = "gradient"

    def _variable(self, operation: Operation) -> int:
        source = operation.inputs[0][0]
        while self._operations[source].kind == "Identity":
            source = self._operations[source].inputs[0][0]
        return source

    def _note(
        self,
        operation: Operation,
        sources: Sequence[Tensor | None],
        made: Sequence[Tensor],
        over: Sequence[Tensor] = (),
        scratch: Sequence[int] = (),
    ) -> None:
        origin = self._names.origin(operation.name)
        if origin.phase != "unknown":
            self._phase = origin.phase
        for y in made:
            y.layer = y.layer or origin.layer
        reads = tuple(x for x in sources if x is not None)
        op = Op(
            operation.name, origin.layer, self._phase, reads, tuple(made), tuple(over)
        )
        if scratch:
            self._take_scratch(op, operation.kind, scratch)
        self._ops.append(op)

    def _take_scratch(self, op: Op, kind: str, sizes: Sequence[int]) -> None:
        """Let an operation read blocks that are made for it alone.

        On a CPU two threads run the two gradients of a convolution at once: there the
        blocks stay until the next operation that takes some is done.
        """
        made = tuple(Tensor((n,), 1, op.layer, kind="workspace") for n in sizes)
        self._ops.append(Op(op.name, op.layer, op.phase, (), made))
        if kind in CONVOLUTIONS and self._device == "gpu":
            for size in sizes:
                trial = min(_TRIAL_FACTOR * size, _LARGEST_TRIAL)
                tried = Op("trial", op.layer, op.phase, (), (), trial=trial)
                self._ops.append(tried)
        op.reads = (*op.reads, *made, *self._scratch)
        if self._device == "cpu":
            self._scratch = made


def _before(operations: Sequence[Operation]) -> list[dict[int, None]]:
    """Return for each operation those that it waits for."""
    return [
        dict.fromkeys((*(i for i, _ in operation.inputs), *operation.after))
        for operation in operations
    ]
