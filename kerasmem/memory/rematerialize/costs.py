"""What each call of a graph keeps for the backward pass, and what it costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.graph.nodes import nodes_in_order
from kerasmem.memory.program import Op, Tensor
from kerasmem.memory.rematerialize.recorded import RecordedStep, work


@dataclass(frozen=True)
class Call:
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


def costs(step: RecordedStep) -> list[Call]:
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
            Call(
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
    return sum(math.prod(x.shape) * x.width for x in tensors if x.kind == "value")
