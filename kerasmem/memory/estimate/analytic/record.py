"""Records a step on a tape: input, forward pass, loss, backward pass and update."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from kerasmem.errors import KerasMemError, ModelError
from kerasmem.files.load import first_reason
from kerasmem.graph.activation_policy import SegmentPolicy
from kerasmem.graph.calls import Call, Trace, trace, trace_call
from kerasmem.graph.computed import ComputedVariable
from kerasmem.graph.kernels import class_of_call
from kerasmem.graph.layer_table import class_name
from kerasmem.graph.layers import own_graph
from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.framework import Framework
from kerasmem.memory.estimate.analytic.layers import HANDLERS, OF_CODES
from kerasmem.memory.estimate.analytic.layers.common import (
    FLOAT,
    gives_logits_of_codes,
    multiplies_codes,
    unknown,
)
from kerasmem.memory.estimate.analytic.segments import (
    RETURN,
    ReplayedSegment,
    rematerialized,
)
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.estimate.analytic.updates import (
    inner_optimizer,
    update_at_once,
    update_by_variable,
)
from kerasmem.memory.estimate.request import Request
from kerasmem.memory.estimate.variables import Precision, width
from kerasmem.memory.program import AllocationPlan, Op, Program, ProgramTensor, peak_of
from kerasmem.types import Layer, Tensor, Variable


@dataclass(frozen=True)
class Record:
    """A recorded step without rematerialization."""

    step: Program
    trace: Trace
    how: Framework

    def steps(
        self, segments: Sequence[ReplayedSegment] = ()
    ) -> tuple[Program, Program]:
        """Return the first step and a later step in execution order.

        In a later step, old gradients may still exist. Keras's torch trainer frees them
        after computing the loss.
        """
        ops = rematerialized(self.step.ops, segments) if segments else self.step.ops
        ops = tuple(self.how.ordered(ops, self.step.results))
        first = replace(self.step, ops=ops)
        gradients = [x for x in first.results if x.root.kind == "gradient"]
        if not gradients:
            return first, first
        old = ProgramTensor((sum(x.nbytes for x in gradients),), 1, kind="gradient")
        hold = Op("hold gradients", None, "forward", (), (old,))
        drop = Op("drop gradients", None, "forward", (old,), ())
        at = next(i for i, op in enumerate(ops) if op.phase == "backward")
        return first, replace(first, ops=(hold, *ops[:at], drop, *ops[at:]))

    def segments_of(self, pieces: Sequence[SegmentPolicy]) -> list[ReplayedSegment]:
        """Return the recomputed segments, one entry per forward pass."""
        piece_of = {id(node): piece for piece in pieces for node in piece.nodes}
        calls: dict[tuple[SegmentPolicy, tuple[int, ...]], set[int]] = {}
        for number, call in enumerate(self.trace.calls):
            path = tuple(map(id, call.nodes))
            for depth, node in enumerate(path):
                if node in piece_of:
                    key = piece_of[node], path[:depth]
                    calls.setdefault(key, set()).add(number)
                    break
        return [
            ReplayedSegment(frozenset(numbers), piece.residuals)
            for (piece, _), numbers in calls.items()
        ]


def record(request: Request, how: Framework) -> Record | None:
    """Record the step of a request. Returns `None` for a model without a graph.

    Layers without a handler are expanded into their operations.
    """
    part = request.of_a_replica()
    tape = Tape(request.training, how)
    forward = Forward(tape, request)
    shapes = [x.shape for x in part.inputs]
    try:
        calls = trace(request.model, part.batch_size, shapes, opens=forward.opens)
    except KerasMemError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:  # Depends on the backend.
        raise ModelError(
            f"The model {request.model.name!r} does not accept inputs of the shapes "
            f"{', '.join(map(str, shapes))}: {first_reason(error)}. Next: pass the "
            "batch size and lengths used in training."
        ) from error
    if calls is None:
        return None
    outputs = forward.run(calls)
    results = [*forward.inputs]
    if request.training:
        _train(tape, request, outputs)
        # Keras's torch trainer keeps the outputs for the metrics after the update.
        results += [*tape.gradients.values(), *outputs] if how.keeps_gradients else []
    else:
        results += outputs
    if how.product_scratch and any(op.name == "matmul" for op in tape.ops):
        space = ProgramTensor((how.product_scratch,), 1, kind="workspace")
        tape.ops.insert(0, Op("workspace", None, "forward", (), (space,)))
        results.append(space)
    unknown = frozenset(forward.unknown)
    return Record(Program(tuple(tape.ops), tuple(results), unknown=unknown), calls, how)


_CLASS_METRICS = {
    "acc",
    "accuracy",
    "categorical_accuracy",
    "sparse_categorical_accuracy",
    "CategoricalAccuracy",
    "SparseCategoricalAccuracy",
}
"""Metrics that take the argmax of the outputs: texts, functions and classes."""


def _compares_classes(request: Request) -> bool:
    """Return whether a compiled metric takes the argmax of the outputs."""
    model = request.model if request.compiled is None else request.compiled
    # Private: the public config is serialized, which fails for some functions.
    config = getattr(getattr(model, "_compile_config", None), "config", None) or {}
    metrics = [config.get(key) for key in ("metrics", "weighted_metrics")]
    return any(
        (x if isinstance(x, str) else getattr(x, "__name__", type(x).__name__))
        in _CLASS_METRICS
        for x in keras.tree.flatten(metrics)
    )


def _train(tape: Tape, request: Request, outputs: list[ProgramTensor]) -> None:
    optimizer: Any = request.optimizer
    seeds = [(y, _loss(tape, y)) for y in outputs]
    if tape.how.argmax_copies and _compares_classes(request):
        for y in (y for y in outputs if y.shape and y.shape[-1] > 1):
            space = round(tape.how.argmax_copies * y.nbytes)
            tape.op("argmax", (y,), tape.new(y.shape[:-1], FLOAT), workspace=space)
    updates = tape.how.updates
    if updates == "lists":
        tape.backward(seeds)
        tape.phase = "optimizer"
        update_at_once(tape, optimizer, list(tape.gradients.values()))
        return
    update = update_by_variable(tape, optimizer, merged=updates == "merged")
    # An optimizer with loss scaling or global-norm clipping needs all gradients before
    # the first update.
    is_outer = optimizer is not inner_optimizer(optimizer)
    if not (is_outer or getattr(optimizer, "global_clipnorm", None)):
        tape.backward(seeds, update)
        return
    tape.backward(seeds)
    tape.phase = "optimizer"
    norm = tape.new((1,), FLOAT)
    tape.op("global norm", list(tape.gradients.values()), norm)
    for variable, gradient in tape.gradients.items():
        clipped_gradient = tape.new(gradient.shape, gradient.width)
        tape.op("clip", (gradient, norm), clipped_gradient, over=(gradient,))
        update(variable, clipped_gradient)


def _loss(tape: Tape, y: ProgramTensor) -> ProgramTensor:
    likely = tape.new(y.shape, max(FLOAT, y.width))
    # The gradient of TensorFlow's cross-entropy reuses the memory of the logits.
    tape.op("loss", (y,), likely, over=(y,))
    tape.phase = "backward"
    dy = tape.new(y.shape, likely.width)
    # Eager steps compute two gradients: of the likelihood, and of the softmax.
    spare = 0 if tape.how.in_place else dy.nbytes
    tape.op("loss gradient", (likely,), dy, over=(likely,), workspace=spare)
    dy = p.cast(tape, dy, y.width)
    tape.phase = "forward"
    return dy


class Forward:
    """The forward pass of a model on a tape.

    Attributes:
        inputs: Inputs of the model, available after `run`.
        unknown: Layers without a handler, available after `run`.
    """

    def __init__(self, tape: Tape, request: Request) -> None:
        self.inputs: list[ProgramTensor] = []
        self.unknown: set[str] = set()
        self._tape = tape
        self._request = request
        self._precision = Precision(request.model.dtype_policy, request.dtype_policy)
        self._parameters: dict[int, ProgramTensor] = {}
        self._known: dict[int, ProgramTensor] = {}
        # Tensors are identified by the ids of symbols, which must not be reused.
        self._opened_traces: list[Any] = []

    def opens(self, layer: Layer) -> bool:
        """Return whether a layer is expanded into its operations."""
        return _rule(layer) not in HANDLERS[self._tape.how.kernels]

    def run(self, trace: Trace) -> list[ProgramTensor]:
        """Record every call and return the outputs of the model."""
        graphs: list[tuple[tuple, list[ProgramTensor]]] = [((), [])]
        for number, call in enumerate(trace.calls):
            self._leave(graphs, call.nodes[:-1])
            with self._tape.inside(_path(call), number):
                is_input = not (call.inputs or call.variables)
                self._input(call) if is_input else self._call(call)
            if not is_input:
                graphs[-1][1].append(self._known[id(call.outputs[0])])
        self._leave(graphs, ())
        self._return(graphs.pop()[1])
        return [self._known[id(x)] for x in trace.outputs]

    def _leave(
        self, graphs: list[tuple[tuple, list[ProgramTensor]]], nodes: tuple
    ) -> None:
        """Free the outputs of graphs that do not contain the next call.

        `graphs` contains the outer nodes and the outputs of each open graph.
        """
        while nodes[: len(graphs[-1][0])] != graphs[-1][0]:
            self._return(graphs.pop()[1])
        if nodes != graphs[-1][0]:
            graphs.append((nodes, []))

    def _return(self, outputs: list[ProgramTensor]) -> None:
        if self._tape.how.keeps_outputs:
            self._tape.op(RETURN, outputs)

    def _input(self, call: Call) -> None:
        for spec in call.outputs:
            x = self._tape.new(spec.shape, width(spec.dtype))
            x.kind, x.differentiable = "input", False
            self._tape.op("input", (), x)
            self._known[id(spec)] = x
            self.inputs.append(x)

    def _call(self, call: Call) -> None:
        layer = call.operation
        size = self._precision.compute_width(layer, call.outputs[0].dtype)
        casts = getattr(layer, "autocast", False)
        xs = []
        for spec in call.inputs:
            x = self._known[id(spec)]
            is_cast = casts and "float" in str(spec.dtype)
            xs.append(p.cast(self._tape, x, size) if is_cast else x)
        xs += [self._parameter(v, size) for v in call.variables]
        shapes = tuple(tuple(y.shape) for y in call.outputs)
        of_weights = not call.inputs
        y = self._layer(layer, xs, shapes, size, call.names, of_weights=of_weights)
        self._known[id(call.outputs[0])] = y
        for spec in call.outputs[1:]:
            part = self._tape.new(spec.shape, size)
            self._known[id(spec)] = p.single(self._tape, "part", (y,), part)

    def _layer(
        self,
        layer: Layer,
        xs: list[ProgramTensor],
        shapes: tuple,
        size: int,
        names: tuple = (),
        *,
        of_weights: bool = False,
    ) -> ProgramTensor:
        name = _rule(layer)
        handler = HANDLERS[self._tape.how.kernels].get(name)
        if handler is None:
            self.unknown.add(f"{name} {layer.name!r}")
            handler = unknown
        site = Site(
            layer=layer,
            names=names,
            shapes=shapes,
            width=size,
            parameter=lambda v: self._parameter(v, size),
            inner=lambda inner, ins, shape: self._inner(inner, ins, shape, size),
            step_bytes=self._step_bytes,
            of_weights=of_weights,
        )
        return handler(self._tape, site, xs)

    def _inner(
        self, layer: Layer, xs: list[ProgramTensor], shape: tuple, size: int
    ) -> ProgramTensor:
        if not self.opens(layer):
            return self._layer(layer, xs, (shape,), size)
        graph = own_graph(layer)
        own = None if graph is None else graph.inputs[0].dtype
        specs = [keras.KerasTensor(x.shape, own or layer.compute_dtype) for x in xs]
        return self._opened(layer, specs, xs)[0]

    def _opened(
        self, layer: Layer, args: Sequence[Any], xs: list[ProgramTensor]
    ) -> list:
        """Record the calls inside of a layer and return its outputs."""
        trace = trace_call(layer, tuple(args), {}, self.opens)
        self._opened_traces.append((trace, args))
        specs = keras.tree.flatten(args)
        self._known |= {id(spec): x for spec, x in zip(specs, xs, strict=True)}
        for call in trace.calls:
            with self._tape.inside(_path(call), self._tape.call):
                self._call(call)
        return [self._known[id(y)] for y in trace.outputs]

    def _step_bytes(self, layer: Layer, x: ProgramTensor) -> tuple[int, int]:
        """Return the bytes saved per time step, and the bytes of a step."""
        how = self._tape.how
        tape = Tape(self._tape.training, how)
        step = Forward(tape, self._request)
        step.unknown = self.unknown
        spec = keras.KerasTensor((x.shape[0], *x.shape[2:]), layer.compute_dtype)
        states = _FirstStates(layer).compute_output_spec(spec)
        is_trained = x.differentiable or bool(layer.trainable_variables)
        xs = [
            tape.new(one.shape, x.width) for one in keras.tree.flatten([spec, states])
        ]
        for one in xs:
            one.differentiable = is_trained
        outputs = {y.root: y for y in step._opened(layer.cell, (spec, states), xs)}
        if tape.training:
            tape.backward([(y, tape.new(y.shape, y.width)) for y in outputs.values()])
        ops = how.ordered(tape.ops, [*outputs])
        read = {x.root for op in ops if op.phase != "forward" for x in op.reads}
        own = {y.root for op in ops if op.phase == "forward" for y in op.writes}
        saved_bytes = sum(x.nbytes for x in read & (own | {*xs[1:]}))
        plan = AllocationPlan(Program(tuple(ops), (*outputs,)), in_place=how.in_place)
        return saved_bytes, peak_of(plan.events, how.rounding).nbytes

    def _parameter(self, variable: Variable, size: int) -> ProgramTensor:
        """Return a variable in the compute dtype of a layer.

        Dequantized kernels are computed in each call and kept for the backward pass.
        """
        if isinstance(variable, ComputedVariable) and not variable.trainable:
            floats = self._tape.new(variable.shape, size)
            self._tape.op("dequantize", (), floats)
            return floats
        if id(variable) not in self._parameters:
            self._parameters[id(variable)] = ProgramTensor(
                self._request.sharding.shard_shape(variable),
                width(self._precision.variable_dtype(variable)),
                variable.path.rpartition("/")[0] or None,
                kind="parameter",
                differentiable=bool(variable.trainable),
            )
        return p.cast(self._tape, self._parameters[id(variable)], size)


class _FirstStates(keras.Operation):
    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._layer = layer

    def call(self, x: Tensor) -> Any:
        """Return the initial states of a recurrent layer."""
        return self._layer.get_initial_state(x.shape[0])


def _rule(layer: Layer) -> str:
    if gives_logits_of_codes(layer):
        return OF_CODES
    if isinstance(layer, keras.layers.RNN) and class_of_call(layer) is keras.layers.RNN:
        return "RNN"
    return "Dense" if multiplies_codes(layer) else class_name(layer)


def _path(call: Call) -> str:
    owner = call.operation
    if not isinstance(owner, keras.layers.Layer) and call.owner is not None:
        owner = call.owner
    return getattr(owner, "path", None) or owner.name
