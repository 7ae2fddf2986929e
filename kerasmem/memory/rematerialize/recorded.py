"""One training step as a list of operations, and which call of a graph each is of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kerasmem.graph.nodes import Trace, nodes_in_order
from kerasmem.graph.treated import Kept
from kerasmem.memory.estimate.analytic.again import WAIT, Run
from kerasmem.memory.estimate.analytic.framework import Framework, framework
from kerasmem.memory.estimate.analytic.step import (
    in_order,
    traced_calls,
    with_gradients_before,
    written,
)
from kerasmem.memory.estimate.persistent import persistent_parts
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import Op, Program, Shape, Tensor, peak_of, plan

_WORK_PER_BYTE = 10
"""Operations on numbers in the time in which a processor moves a byte, roughly."""

_CONVOLUTIONS = {"convolution", "convolution gradient", "kernel gradient"}


@dataclass(frozen=True)
class RecordedStep:
    """A step that keeps all.

    Args:
        step: its operations, in the order of the model.
        trace: the model's calls.
        graph: the model, or the Functional model in it, whose calls are told apart.
        how: how the backend runs it.
        fixed_bytes: bytes that are there before and after.
    """

    step: Program
    trace: Trace
    graph: Any
    how: Framework
    fixed_bytes: int

    @property
    def ops(self) -> tuple[Op, ...]:
        """Its operations."""
        return self.step.ops

    @cached_property
    def numbers(self) -> Sequence[int | None]:
        """For each call of the model, that of the graph it is in, None for none."""
        place = {id(node): n for n, node in enumerate(nodes_in_order(self.graph))}
        return [
            next((place[id(n)] for n in call.nodes if id(n) in place), None)
            for call in self.trace.calls
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
        runs = [Run(found, Kept.AS_IT_IS) for found in calls]
        return with_gradients_before(in_order(self.step, self.how, runs))

    def peak_bytes(self, step: Program) -> int:
        """Return the estimated peak of what `with_pieces` returned."""
        planned = plan(step, in_place=self.how.in_place)
        nbytes = peak_of(planned.events, self.how.rounding).nbytes
        return self.fixed_bytes + round(nbytes * (1 + self.how.waste))


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
    how = framework(unmerged)
    traced = traced_calls(unmerged, how)
    if traced is None:
        raise TypeError("The step of a model without a graph cannot be written down.")
    return RecordedStep(
        step=written(unmerged, traced, how),
        trace=traced,
        graph=graph,
        how=how,
        fixed_bytes=sum(part.nbytes for part in persistent_parts(request))
        + how.held(training=True),
    )


def work(op: Op) -> float:
    """Return the estimated time of an operation, in additions or multiplications."""
    if op.name == WAIT:
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
