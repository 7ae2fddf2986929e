"""A whole step on a tape: input, forward pass, loss, backward pass, update."""

from collections.abc import Sequence
from dataclasses import replace

from kerasmem.graph.nodes import Trace, trace
from kerasmem.graph.treated import Piece, treatment_of
from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.again import RETURN, Run, computed_again
from kerasmem.memory.estimate.analytic.forward import Forward
from kerasmem.memory.estimate.analytic.framework import Framework
from kerasmem.memory.estimate.analytic.layers.parts import FLOAT
from kerasmem.memory.estimate.analytic.tape import Tape
from kerasmem.memory.estimate.analytic.updates import (
    update_at_once,
    update_by_variable,
    update_in_place,
    waits_for_all,
)
from kerasmem.memory.estimate.precision import Precision
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.program import Op, Program, Tensor


def traced_calls(request: Request, framework: Framework) -> Trace | None:
    """Return the calls of the model's forward pass, as far as tables know them.

    A layer of which no table knows is opened; None is returned for a model without a
    graph.
    """
    return trace(
        request.model,
        request.batch_size,
        request.input_shapes,
        opens=lambda layer: type(layer).__name__ not in framework.handlers,
    )


def record(request: Request, trace: Trace, framework: Framework) -> Program:
    """Return the operations of the first step, before which there are no gradients.

    Args:
        request: what to estimate.
        trace: the calls of the model.
        framework: how the backend runs them.
    """
    runs = _runs(request, trace)
    return in_order(written(request, trace, framework), framework, runs)


def in_order(step: Program, framework: Framework, runs: Sequence[Run]) -> Program:
    """Return the operations of a step in the order in which they run.

    Args:
        step: what `written` returned.
        framework: how the backend runs them.
        runs: the pieces that are computed again.
    """
    ops = computed_again(step.ops, runs) if runs else step.ops
    return replace(step, ops=tuple(framework.ordered(ops, step.kept)))


def _runs(request: Request, trace: Trace) -> list[Run]:
    """Return the pieces of the model that are computed again, each time they run."""
    treatment = treatment_of(request.model)
    if treatment is None or not request.training:
        return []
    piece_of = {id(node): piece for piece in treatment.pieces for node in piece.nodes}
    calls: dict[tuple[Piece, tuple[int, ...]], set[int]] = {}
    for number, call in enumerate(trace.calls):
        path = tuple(map(id, call.nodes))
        for depth, node in enumerate(path):
            if node in piece_of:
                key = piece_of[node], path[:depth]
                calls.setdefault(key, set()).add(number)
                break
    return [Run(frozenset(found), piece.kept) for (piece, _), found in calls.items()]


def written(request: Request, trace: Trace, framework: Framework) -> Program:
    """Return the operations of a step that keeps all, in the order of the model.

    Args:
        request: what to estimate.
        trace: the calls of the model.
        framework: how the backend runs them.
    """
    tape = Tape(
        request.training,
        framework.scratch,
        framework.product_scratch,
        framework.fused_recurrence,
    )
    precision = Precision(request.model, request.dtype_policy)
    forward = Forward(tape, framework.handlers, precision)
    outputs = forward.run(trace)
    if framework.keeps_outputs:
        tape.op(RETURN, forward.made)
    kept = [*forward.inputs]
    if request.training:
        _train(tape, request, framework, outputs)
        kept += tape.gradients.values() if framework.keeps_gradients else []
    else:
        kept += outputs
    return Program(tuple(tape.ops), tuple(kept), unknown=frozenset(forward.unknown))


def _train(
    tape: Tape, request: Request, framework: Framework, outputs: list[Tensor]
) -> None:
    seeds = [(y, _loss(tape, y)) for y in outputs]
    optimizer = request.optimizer
    if framework.updates == "lists":
        tape.backward(seeds)
        tape.phase = "optimizer"
        update_at_once(tape, optimizer, list(tape.gradients.values()))
        return
    merged = framework.updates == "merged"
    update = update_in_place(tape) if merged else update_by_variable(tape, optimizer)
    if not waits_for_all(optimizer):
        tape.backward(seeds, update)
        return
    tape.backward(seeds)
    tape.phase = "optimizer"
    norm = tape.new((1,), FLOAT)
    tape.op("global norm", list(tape.gradients.values()), norm)
    for variable, gradient in tape.gradients.items():
        clipped = tape.new(gradient.shape, gradient.width)
        tape.op("clip", (gradient, norm), clipped, over=(gradient,))
        update(variable, clipped)


def _loss(tape: Tape, y: Tensor) -> Tensor:
    """Return the gradient of the loss; on the way there are probabilities."""
    likely = tape.new(y.shape, max(FLOAT, y.width))
    tape.op("loss", (y,), likely)
    tape.phase = "backward"
    dy = tape.new(y.shape, likely.width)
    tape.op("loss gradient", (likely,), dy, over=(likely,))
    dy = p.converted(tape, dy, y.width)
    tape.phase = "forward"
    return dy


def with_gradients_before(step: Program) -> Program:
    """Return the step with the gradients of the one before until the loss is there.

    Keras's torch trainer drops them only then.
    """
    gradients = [x for x in step.kept if x.root.kind == "gradient"]
    if not gradients:
        return step
    old = Tensor((sum(x.nbytes for x in gradients),), 1, kind="gradient")
    hold = Op("hold gradients", None, "forward", (), (old,))
    drop = Op("drop gradients", None, "forward", (old,), ())
    at = next(i for i, op in enumerate(step.ops) if op.phase == "backward")
    return replace(step, ops=(hold, *step.ops[:at], drop, *step.ops[at:]))
