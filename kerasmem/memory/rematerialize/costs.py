"""One training step as operations, and the cost of each call of a graph."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kerasmem.graph.activation_policy import Residuals
from kerasmem.graph.layers import nodes_in_order
from kerasmem.memory.estimate.analytic.framework import framework
from kerasmem.memory.estimate.analytic.record import Record, record
from kerasmem.memory.estimate.analytic.segments import BARRIER, Segment
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import persistent_parts
from kerasmem.memory.program import Op, Plan, Program, Shape, Tensor, peak_of

_WORK_PER_BYTE = 10
"""Operations on numbers in the time in which a processor moves a byte, roughly."""

_CONVOLUTIONS = {"convolution", "convolution gradient", "kernel gradient"}


@dataclass(frozen=True)
class RecordedStep:
    """A step that keeps all.

    Args:
        record: its operations, in the order of the model.
        graph: the model, or the Functional model in it, whose calls are told apart.
        fixed_bytes: bytes that are there before and after.
    """

    record: Record
    graph: Any
    fixed_bytes: int

    @property
    def ops(self) -> tuple[Op, ...]:
        """Its operations."""
        return self.record.step.ops

    @cached_property
    def numbers(self) -> Sequence[int | None]:
        """For each call of the model, that of the graph it is in, None for none."""
        place = {id(node): n for n, node in enumerate(nodes_in_order(self.graph))}
        return [
            next((place[id(n)] for n in call.nodes if id(n) in place), None)
            for call in self.record.trace.calls
        ]

    @cached_property
    def work(self) -> float:
        """The estimated time of all operations of a later step."""
        return sum(map(work, self.with_pieces(()).ops))

    def number(self, op: Op) -> int | None:
        """Return the call of the graph that an operation belongs to, None for none."""
        return None if op.call is None else self.numbers[op.call]

    def with_pieces(self, pieces: Sequence[tuple[int, int]]) -> Program:
        """Return a later step in which ranges of the graph's calls run twice."""
        calls = [
            frozenset(
                call
                for call, number in enumerate(self.numbers)
                if number is not None and start <= number < end
            )
            for start, end in pieces
        ]
        segments = [Segment(numbers, Residuals.ALL) for numbers in calls]
        return self.record.steps(segments)[1]

    def peak_bytes(self, step: Program) -> int:
        """Return the estimated peak of what `with_pieces` returned."""
        how = self.record.how
        planned = Plan(step, in_place=how.in_place)
        nbytes = peak_of(planned.events, how.rounding).nbytes
        return self.fixed_bytes + round(nbytes * (1 + how.waste))


def recorded(request: Request, graph: Any) -> RecordedStep:
    """Return a training step of the request's model, which keeps all.

    Args:
        request: the question.
        graph: the model, or the Functional model in it, whose calls are told apart.
    """
    # XLA merges operations of neighbors, across every place to cut: the plan is made as
    # if it did not.
    backend = "tensorflow" if request.backend == "jax" else request.backend
    unmerged = replace(request, backend=backend, jit_compile=False)
    how = framework(backend, request.device, compiled=False)
    step = record(unmerged, how)
    if step is None:
        raise TypeError("The step of a model without a graph cannot be written down.")
    return RecordedStep(
        record=step,
        graph=graph,
        fixed_bytes=sum(part.nbytes for part in persistent_parts(request))
        + how.held(training=True),
    )


def work(op: Op) -> float:
    """Return the estimated time of an operation, in additions or multiplications."""
    if op.name == BARRIER:
        return 0.0
    # What only says that others are done has no bytes.
    reads = [x for x in op.reads if x.nbytes]
    moved = sum(x.nbytes for x in (*reads, *op.writes))
    return _WORK_PER_BYTE * moved + 2 * _products(op, reads)


def _products(op: Op, reads: Sequence[Tensor]) -> float:
    """Return the multiplications of a matrix product or a convolution."""
    shapes = [x.shape for x in (*reads, *op.writes)]
    if op.name in _CONVOLUTIONS:
        return _convolution(shapes, len(op.writes))
    if op.fusible or op.reduces or len(reads) != 2 or len(op.writes) != 1:
        return 0.0
    # Of matrices of m x k, k x n and m x n these are m k n; a batch is in all three.
    batch = 1
    for a, b, c in zip(*shapes, strict=False):
        if not a == b == c or min(map(len, shapes)) < 3:
            break
        batch *= a
    return math.sqrt(math.prod(map(math.prod, shapes)) / batch)


def _convolution(shapes: Sequence[Shape], outputs: int) -> float:
    # Every entry of the kernel, which has no batch, meets every position of the
    # smaller of the two images.
    kernel, *images = sorted(shapes, key=lambda shape: math.prod(shape[:-2]))
    positions = min(math.prod(shape[:-1]) for shape in images or [kernel])
    return outputs * positions * math.prod(kernel)


@dataclass(frozen=True)
class CallCosts:
    """Costs of one call.

    Args:
        kept_bytes: bytes that it makes and the backward pass reads.
        output_bytes: bytes that it hands to later calls.
        work: estimated time.
        needs_itself: whether its own gradient reads what it makes.
        uses: numbers of the calls whose outputs it takes.
        reads_uses: whether its gradient reads what it takes.
        last_use: number of the last call that takes its output; the number of calls if
            that is the model's own.
    """

    kept_bytes: int
    output_bytes: int
    work: float
    needs_itself: bool
    uses: frozenset[int]
    reads_uses: bool
    last_use: int


def costs(step: RecordedStep) -> list[CallCosts]:
    """Return the costs of each call of the step's graph, in order."""
    graph = step.graph
    nodes = nodes_in_order(graph)
    maker = {id(y): number for number, node in enumerate(nodes) for y in node.outputs}
    uses = [frozenset(_makers(node, maker)) for node in nodes]
    last_use = list(range(len(nodes)))
    for number, used in enumerate(uses):
        for one in used:
            last_use[one] = number
    for y in graph.outputs:
        if id(y) in maker:
            last_use[maker[id(y)]] = len(nodes)
    forward, backward = _by_call(step, "forward"), _by_call(step, "backward")
    read_later = {x.root for op in step.ops if op.phase == "backward" for x in op.reads}
    found = []
    for number in range(len(nodes)):
        made = {y.root for op in forward[number] for y in op.writes}
        read = {x.root for op in backward[number] for x in op.reads}
        taken = {x.root for op in forward[number] for x in op.reads} - made
        found.append(
            CallCosts(
                kept_bytes=_nbytes(made & read_later),
                output_bytes=_output_bytes(forward, number, last_use[number]),
                work=sum(map(work, forward[number])),
                needs_itself=bool(made & read),
                uses=uses[number],
                reads_uses=bool(_values(taken) & read),
                last_use=last_use[number],
            )
        )
    return found


def _makers(node: Any, maker: dict[int, int]) -> list[int]:
    return [maker[id(x)] for x in node.input_tensors if id(x) in maker]


def _by_call(step: RecordedStep, phase: str) -> list[list[Op]]:
    found: list[list[Op]] = [[] for _ in nodes_in_order(step.graph)]
    for op in step.ops:
        number = step.number(op)
        if number is not None and op.phase == phase:
            found[number].append(op)
    return found


def _output_bytes(forward: Sequence[list[Op]], number: int, last_use: int) -> int:
    """Return the bytes that later calls take."""
    made = {y.root for op in forward[number] for y in op.writes}
    taken = {
        x.root
        for ops in forward[number + 1 : last_use + 1]
        for op in ops
        for x in op.reads
    }
    return _nbytes(made & taken)


def _values(tensors: set[Tensor]) -> set[Tensor]:
    return {x for x in tensors if x.kind != "parameter"}


def _nbytes(tensors: set[Tensor]) -> int:
    return sum(x.nbytes for x in tensors if x.kind == "value")
