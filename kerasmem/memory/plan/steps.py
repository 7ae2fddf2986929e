"""Training steps as operations: costs of each call, and simulated strategies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import keras

from kerasmem.graph.activation_policy import ActivationPolicy
from kerasmem.graph.inside import open_for_good, runs_twice
from kerasmem.graph.layers import has_graph, last_uses, nodes_in_order, sublayers
from kerasmem.graph.segments import graph_of
from kerasmem.memory.compress_activations.apply import packs_any
from kerasmem.memory.compress_activations.plan import Ranges
from kerasmem.memory.estimate.analytic.framework import framework
from kerasmem.memory.estimate.analytic.record import Record, record
from kerasmem.memory.estimate.analytic.segments import BARRIER, PACKING
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import persistent_bytes
from kerasmem.memory.plan.apply import PlannedActivations
from kerasmem.memory.plan.parts import Path, parts_at, with_graph
from kerasmem.memory.program import (
    AllocationPlan,
    Op,
    Program,
    ProgramTensor,
    Shape,
    peak_of,
)
from kerasmem.types import Node

WORK_PER_BYTE = 10
"""Approximate number of operations in the time that moving one byte takes."""

_WORK_PER_OP = {"cpu": 1e6, "gpu": 1e8}
"""Approximate number of operations in the time that starting one takes."""

_WORK_PER_STEP = {"cpu": 3e8, "gpu": 3e10}
"""Approximate number of operations in the time that calling one step takes."""

_CONVOLUTIONS = {"convolution", "convolution gradient", "kernel gradient"}


@dataclass(frozen=True)
class Strategy:
    """Strategy of the activations and the batch of a step.

    Args:
        pieces: Ranges of calls to recompute. Each range is one segment.
        in_8_bits: Ranges of calls with saved activations in 8 bits. A piece in such a
            range has its inputs in 8 bits.
        micro_batches: Number of micro-batches per update.
    """

    pieces: Ranges = ()
    in_8_bits: Ranges = ()
    micro_batches: int = 1


@dataclass(frozen=True)
class Simulation:
    """Estimate of a changed step.

    `work` and `update_work` are the estimated times of gradients and update, comparable
    between the strategies of a model.
    """

    peak_bytes: int
    work: float
    update_work: float


@dataclass(frozen=True)
class RecordedStep:
    """Step without recomputation, for a model and the part to be cut."""

    request: Request
    path: Path
    graph: Any
    record: Record
    fixed_bytes: int

    @property
    def ops(self) -> tuple[Op, ...]:
        """Operations of the step."""
        return self.record.step.ops

    @cached_property
    def nodes(self) -> Sequence[Any]:
        """Calls of the part, in order."""
        return nodes_in_order(self.graph)

    @cached_property
    def names(self) -> Sequence[str]:
        """Name of the operation of each call."""
        return [node.operation.name for node in self.nodes]

    @cached_property
    def fixed(self) -> frozenset[int]:
        """Indices of the calls that cannot be recomputed."""
        return frozenset(n for n, node in enumerate(self.nodes) if _is_fixed(node))

    @cached_property
    def calls(self) -> "Sequence[CallCosts]":
        """Estimated costs of each call."""
        return _costs(self)

    @cached_property
    def all_calls(self) -> Ranges:
        """The range of all calls of the part."""
        return ((0, len(self.nodes)),)

    @cached_property
    def becomes_smaller(self) -> bool:
        """Whether an activation becomes smaller in 8 bits."""
        return packs_any(self.policy(Strategy(in_8_bits=self.all_calls)))

    @cached_property
    def _parts(self) -> list[Any]:
        return parts_at(self.request.model, self.path)

    @property
    def part(self) -> Any:
        """The part to be cut."""
        return self._parts[-1]

    def policy(self, strategy: Strategy) -> ActivationPolicy:
        """Return the activation policy of a strategy."""
        changes = PlannedActivations(self.path, strategy.pieces, strategy.in_8_bits)
        return changes.policy(self._parts[0], self._parts)

    @cached_property
    def _numbers(self) -> Sequence[int | None]:
        place = {id(node): n for n, node in enumerate(self.nodes)}
        return [
            next((place[id(n)] for n in call.nodes if id(n) in place), None)
            for call in self.record.trace.calls
        ]

    def by_call(self, ops: Sequence[Op], phase: str) -> list[list[Op]]:
        """Return the operations of a phase for each call of the part."""
        ops_by_call: list[list[Op]] = [[] for _ in self.nodes]
        for op in ops:
            number = None if op.call is None else self._numbers[op.call]
            if number is not None and op.phase == phase:
                ops_by_call[number].append(op)
        return ops_by_call

    def simulate(self, strategy: Strategy) -> Simulation:
        """Estimate a later step with a strategy of its activations."""
        step, how = self.program(strategy), self.record.how
        events = AllocationPlan(step, in_place=how.in_place).events
        nbytes = peak_of(events, how.rounding).nbytes
        device = self.request.device
        work = {"optimizer": 0.0, "other": _WORK_PER_STEP[device]}
        for op in step.ops:
            phase = op.phase if op.phase in work else "other"
            work[phase] += _work(op, _WORK_PER_OP[device])
        peak_bytes = self.fixed_bytes + round(nbytes * (1 + how.waste))
        if device == "cpu":
            # TensorFlow may compute the gradients of two kernels at the same time.
            spaces = (op.workspace for op in step.ops if op.name in _CONVOLUTIONS)
            peak_bytes += max(spaces, default=0) // 2
        return Simulation(peak_bytes, work["other"], work["optimizer"])

    def program(self, strategy: Strategy) -> Program:
        """Return a later step in execution order."""
        segments = self.record.segments_of(self.policy(strategy).segments)
        return self.record.steps(segments)[1]


def recorded(
    request: Request, path: Path, graph: Any, fixed_bytes: int | None = None
) -> RecordedStep:
    """Record a training step of the request's model without recomputation.

    `fixed_bytes` is known from a step with another batch size.
    """
    how = framework(request.backend, request.device, compiled=request.jit_compile)
    step = record(request, how)
    if step is None:
        raise TypeError("The step of a model without a graph cannot be recorded.")
    if fixed_bytes is None:
        fixed_bytes = persistent_bytes(request)
        fixed_bytes += 2 * how.held_scratch
    return RecordedStep(request, path, graph, step, fixed_bytes)


def recorded_step(request: Request) -> RecordedStep:
    """Record a step of the request's model, with the main part as the part to cut.

    Raises:
        ModelError: If the model has no graph.
    """
    model = with_graph(request.model, request.inputs)
    request = replace(request, model=model, compiled=request.model)
    path: Path = ()
    while True:
        graph = graph_of(parts_at(model, path)[-1])
        step = recorded(request, path, graph)
        inner = _main_call(step)
        if inner is None:
            return step
        path = (*path, inner)


def _main_call(step: RecordedStep) -> int | None:
    """Return the call that saves more than all others together, if it can be cut.

    The call is a nested model or a layer of layers, such as an encoder with all blocks.
    """
    total = sum(call.kept_bytes for call in step.calls)
    operations = [node.operation for node in step.nodes]
    pairs = zip(step.nodes, step.calls, strict=True)
    for number, (node, call) in enumerate(pairs):
        once = operations.count(node.operation) == 1
        if once and 2 * call.kept_bytes > total and _can_be_cut(node):
            return number
    return None


def _can_be_cut(node: Node) -> bool:
    layer = node.operation
    if has_graph(layer):
        return True
    if not isinstance(layer, keras.layers.Layer) or not sublayers(layer)[1:]:
        return False
    graph = None if type(layer).__module__.startswith("keras.") else open_for_good(node)
    return graph is not None and len(nodes_in_order(graph)) > 1


def _is_fixed(node: Node) -> bool:
    """Return whether a call saves almost nothing, or cannot run again.

    The gradient of an embedding reads only indices and returns sparse rows. As a
    function of tensors, it would be as large as the table.
    """
    table = isinstance(node.operation, keras.layers.Embedding)
    is_sparse = any(x.sparse for x in node.input_tensors)
    return table or is_sparse or not runs_twice(node)


def _work(op: Op, per_op: float = 0.0) -> float:
    if op.name == BARRIER:
        return 0.0
    # Tensors without bytes only express dependencies.
    reads = [x for x in op.reads if x.nbytes]
    moved_bytes = sum(x.nbytes for x in (*reads, *op.writes))
    if op.name in PACKING:
        moved_bytes += 2 * op.workspace
    return per_op + WORK_PER_BYTE * moved_bytes + 2 * _products(op, reads)


def _products(op: Op, reads: Sequence[ProgramTensor]) -> float:
    shapes = [x.shape for x in (*reads, *op.writes)]
    if op.name in _CONVOLUTIONS:
        return _convolution(shapes, len(op.writes))
    if op.fusible or op.reduces or len(reads) != 2 or len(op.writes) != 1:
        return 0.0
    # Matrices of m x k, k x n and m x n need m k n multiplications. A batch axis is in
    # all three shapes.
    batch = 1
    for a, b, c in zip(*shapes, strict=False):
        if not a == b == c or min(map(len, shapes)) < 3:
            break
        batch *= a
    return math.sqrt(math.prod(map(math.prod, shapes)) / batch)


def _convolution(shapes: Sequence[Shape], outputs: int) -> float:
    # Each entry of the kernel, which has no batch axis, is multiplied with each
    # position of the smaller image.
    kernel, *images = sorted(shapes, key=lambda shape: math.prod(shape[:-2]))
    positions = min(math.prod(shape[:-1]) for shape in images or [kernel])
    return outputs * positions * math.prod(kernel)


@dataclass(frozen=True)
class CallCosts:
    """Costs of one call.

    Args:
        kept_bytes: Bytes of its outputs that the backward pass reads.
        output_bytes: Bytes of its outputs that later calls read.
        work: Estimated time.
        needs_itself: Whether its gradient reads its outputs.
        uses: Indices of the calls that compute its inputs.
        reads_uses: Whether its gradient reads its inputs.
        last_use: Index of the last call that reads its outputs. Number of calls for an
            output of the model.
    """

    kept_bytes: int
    output_bytes: int
    work: float
    needs_itself: bool
    uses: frozenset[int]
    reads_uses: bool
    last_use: int


def _costs(step: RecordedStep) -> list[CallCosts]:
    graph, nodes = step.graph, step.nodes
    maker = {id(y): number for number, node in enumerate(nodes) for y in node.outputs}
    uses = [
        frozenset(maker[id(x)] for x in node.input_tensors if id(x) in maker)
        for node in nodes
    ]
    last = last_uses(nodes, graph.outputs)
    last_use = [
        max([number, *(last.get(id(y), number) for y in node.outputs)])
        for number, node in enumerate(nodes)
    ]
    forward, backward = (step.by_call(step.ops, p) for p in ("forward", "backward"))
    read_later = {x.root for op in step.ops if op.phase == "backward" for x in op.reads}
    costs = []
    for number in range(len(nodes)):
        outputs = {y.root for op in forward[number] for y in op.writes}
        read = {x.root for op in backward[number] for x in op.reads}
        inputs = {x.root for op in forward[number] for x in op.reads} - outputs
        costs.append(
            CallCosts(
                kept_bytes=_nbytes(outputs & read_later),
                output_bytes=_output_bytes(forward, number, last_use[number]),
                work=sum(map(_work, forward[number])),
                needs_itself=bool(outputs & read),
                uses=uses[number],
                reads_uses=any(x.kind != "parameter" for x in inputs & read),
                last_use=last_use[number],
            )
        )
    return costs


def _output_bytes(forward: Sequence[list[Op]], number: int, last_use: int) -> int:
    outputs = {y.root for op in forward[number] for y in op.writes}
    later_reads = {
        x.root
        for ops in forward[number + 1 : last_use + 1]
        for op in ops
        for x in op.reads
    }
    return _nbytes(outputs & later_reads)


def _nbytes(tensors: set[ProgramTensor]) -> int:
    return sum(x.nbytes for x in tensors if x.kind == "value")
