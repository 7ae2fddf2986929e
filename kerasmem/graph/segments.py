"""Cuts a model's graph into segments that run as pure functions in training.

Keras runs a graph node by node, and layers assign variables. A segment is a function of
input tensors, masks and variable values. Its results are output tensors, masks, losses
and new values of variables, so a framework can recompute the segment. The model itself
is not changed, except for its call in training.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

# Private: how a graph passes `training` and other arguments to its operations.
from keras.src.models.functional import operation_fn  # noqa: TID251

from kerasmem import backends
from kerasmem.backends.patching import LayerCall, observe_calls
from kerasmem.backends.recompute import ArgumentStore, Function
from kerasmem.errors import ModelError
from kerasmem.graph.inside import Opened, opened
from kerasmem.graph.layers import own_graph, sublayers
from kerasmem.graph.masks import mask_of, with_mask
from kerasmem.types import Model, Node, Operation, Tensors

Recomputation = Callable[[Function], Function]
"""Wraps a function of the same signature, for example to recompute activations."""

Operator = Callable[[Any], Callable[..., Any]]
"""Returns a function that calls an operation with the arguments of the model's call."""

Run = Callable[[Any, Operator], Any]
"""Runs a graph by segments. Returns the outputs for the inputs."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive calls of a graph.

    `inputs` are `KerasTensor`s from earlier calls, in the order of use. `outputs` are
    used by later calls or returned by the graph.
    """

    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def segments_of(
    groups: Sequence[Sequence[Any]], outputs: Sequence[Any]
) -> list[Segment]:
    """Converts groups of calls, which cover the whole graph, to segments."""
    users: dict[int, set[int]] = {id(y): {len(groups)} for y in outputs}
    for number, nodes in enumerate(groups):
        for node in nodes:
            for x in node.input_tensors:
                users.setdefault(id(x), set()).add(number)
    return [_segment(nodes, users, number) for number, nodes in enumerate(groups)]


def graph_of(model: Model) -> Any:
    """Returns the graph of a model, or of a layer after `open_for_good`, or None."""
    opened_layer = opened(model)
    return opened_layer.graph if opened_layer else own_graph(model)


def _segment(nodes: Sequence[Any], users: dict[int, set[int]], number: int) -> Segment:
    outputs = {id(y): y for node in nodes for y in node.outputs}
    inputs = {id(x): x for node in nodes for x in node.input_tensors}
    return Segment(
        nodes=tuple(nodes),
        inputs=tuple(x for key, x in inputs.items() if key not in outputs),
        outputs=tuple(
            y for key, y in outputs.items() if users.get(key, set()) - {number}
        ),
    )


def recompute(
    model: Model, segments: Sequence[tuple[Segment, Recomputation | None]]
) -> Callable[[], None]:
    """Makes a model run by segments in training. Returns the undo.

    A recomputed function takes the tensors of `Segment.inputs`, then masks, then values
    of variables. Inference, saved files and the config are not changed. `segments`
    contains all segments in order, as returned by `cut`.
    """
    opened_layer, graph = opened(model), graph_of(model)
    run = backends.current().uncompiled(partial(_run, graph, segments))
    if opened_layer is None:
        return observe_calls([graph], inputs=partial(_replace_graph, run, graph))
    return observe_calls([model], inputs=partial(_replace_layer, run, opened_layer))


def recomputation(model: Model, store: ArgumentStore | None = None) -> Recomputation:
    """Returns the recomputation of segments of a model. See `RecomputeBackend`."""

    def wrap(function: Function) -> Function:
        # `jit_compile` is only known when the step is traced.
        is_compiled = model.compiled and bool(model.jit_compile)
        return backends.current().recomputed(function, store, compiled=is_compiled)

    return wrap


def _replace_graph(run: Run, graph: Any, call: LayerCall) -> LayerCall | None:
    context = dict(call.kwargs)
    mask, tensors = context.pop("mask", None), context.pop("inputs", None)
    if not context.get("training"):
        return None
    # Private: no public method lies between the argument checks and the loop over
    # the nodes.
    inputs = graph._standardize_inputs(call.args[0] if call.args else tensors)
    for x, own in zip(inputs, keras.tree.flatten(mask), strict=False):
        if own is not None:
            with_mask(x, own)
    outputs = run(inputs, partial(operation_fn, **context))
    is_one = isinstance(outputs, list | tuple) and len(outputs) == 1
    call.outputs = outputs[0] if is_one else outputs
    return call


def _replace_layer(run: Run, known: Opened, call: LayerCall) -> LayerCall | None:
    # Private: a `call` without the argument `training` has no other access to it. Keras
    # does not pass it to a model with such a `call`, in training or in inference.
    training = getattr(call.layer._get_call_context(), "training", None)
    is_untold = training is None and not call.layer._call_has_training_arg
    if not (training or is_untold):
        return None
    inputs = known.inputs(call.layer, call.args, call.kwargs)
    pairs = zip(inputs, known.graph.inputs, strict=True)
    if any(x is None or tuple(x.shape[1:]) != y.shape[1:] for x, y in pairs):
        return None  # The graph has the lengths of the planned batch.
    if any(isinstance(x, keras.KerasTensor) for x in inputs):
        return None
    call.outputs = run(inputs, _in_training if training else _as_told)
    return call


def _as_told(operation: Operation) -> Callable[..., Any]:
    return operation


def _in_training(operation: Operation) -> Callable[..., Any]:
    if not isinstance(operation, keras.layers.Layer):
        return operation

    def call(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **{"training": True, **kwargs})

    return call


def _run(
    graph: Any,
    segments: Sequence[tuple[Segment, Recomputation | None]],
    inputs: Tensors,
    operation_fn: Operator,
) -> Any:
    tensors = keras.tree.flatten(inputs)
    values = {id(x): value for x, value in zip(graph.inputs, tensors, strict=True)}
    for segment, recomputation in segments:
        if recomputation is None:
            for node in segment.nodes:
                run_node(node, values, operation_fn)
        else:
            run = PureRun(segment, operation_fn)
            values.update(run(values, recomputation))
    outputs = [values[id(y)] for y in graph.outputs]
    return keras.tree.pack_sequence_as(graph._outputs_struct, outputs)


def run_node(node: Node, known: dict[int, Any], operator: Operator) -> None:
    """Runs one call and adds its outputs to `known`."""
    args, kwargs = node.arguments.fill_in(known)
    outputs = operator(node.operation)(*args, **kwargs)
    known.update(zip(map(id, node.outputs), keras.tree.flatten(outputs), strict=False))


class PureRun:
    """One run of a segment as a pure function."""

    def __init__(self, segment: Segment, operator: Operator) -> None:
        self._segment = segment
        self._operator = operator
        self._variables = _variables(segment.nodes)
        self._present: list[bool] = []  # inputs that are not None
        self._masked_in: list[bool] = []
        self._masked_out: list[bool] = []
        self._losses: list[tuple[int, Any]] | None = None  # index and layer
        self._changed: list[Any] = []

    def __call__(
        self,
        known: dict[int, Any],
        recomputation: Callable[[Function], Function],
    ) -> dict[int, Any]:
        """Returns the values of the segment's outputs, by `id` of `KerasTensor`."""
        live = [known[id(x)] for x in self._segment.inputs]
        self._present = [x is not None for x in live]
        live = [x for x in live if x is not None]
        masks = [mask_of(x) for x in live]
        self._masked_in = [mask is not None for mask in masks]
        tensors = [
            *live,
            *_there(masks),
            *_values(self._segment.nodes, self._variables),
        ]
        results = iter(recomputation(self._function)(*tensors))
        if _around() is None:
            _check_no_weight(self._changed, self._segment)
        outputs = [next(results) for _ in self._segment.outputs]
        for y, has_mask in zip(outputs, self._masked_out, strict=True):
            if has_mask:
                with_mask(y, next(results))
        for _, layer in self._losses or ():
            # Not `layer.add_loss`, which a nested Functional model does not support.
            keras.layers.Layer.add_loss(layer, next(results))
        for variable in self._changed:
            variable.assign(next(results))
        keys = map(id, self._segment.outputs)
        return dict(zip(keys, outputs, strict=True))

    def _function(self, *tensors: Any) -> tuple[Any, ...]:
        arrays = iter(tensors)
        live = [next(arrays) for there in self._present if there]
        for x, has_mask in zip(live, self._masked_in, strict=True):
            if has_mask:
                with_mask(x, next(arrays))
        values = iter(live)
        tensors_by_id = {
            id(x): next(values) if there else None
            for x, there in zip(self._segment.inputs, self._present, strict=True)
        }
        before = dict(zip(map(id, self._variables), arrays, strict=True))
        scope = keras.StatelessScope(collect_losses=True, initialize_variables=False)
        for variable in self._variables:
            # The constructor would convert values to half precision inside a layer
            # that computes in half precision.
            scope.add_update((variable, before[id(variable)]))
        losses: list[tuple[Any, Any]] = []
        with scope:
            for node in self._segment.nodes:
                run_node(node, tensors_by_id, self._operator)
                new_losses = _new(scope.losses, [loss for loss, _ in losses])
                losses += [(loss, node.operation) for loss in new_losses]
        _check_only_own(scope, self._variables, self._segment)
        outputs = [tensors_by_id[id(y)] for y in self._segment.outputs]
        masks = [mask_of(y) for y in outputs]
        self._masked_out = [mask is not None for mask in masks]
        if self._losses is None:
            # A layer drops the losses of its previous call. Only the first run counts,
            # because in the second run every layer is called directly.
            there = {id(loss) for loss in scope.losses}
            self._losses = [
                (number, layer)
                for number, (loss, layer) in enumerate(losses)
                if id(loss) in there
            ]
        loss_values = [losses[number][0] for number, _ in self._losses]
        self._changed = [
            v
            for v in self._variables
            if scope.get_current_value(v) is not before[id(v)]
        ]
        after = [scope.get_current_value(v) for v in self._changed]
        return (*outputs, *_there(masks), *loss_values, *after)


def _there(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _new(now: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    ids = {id(x) for x in before}
    return [x for x in now if id(x) not in ids]


def _variables(nodes: Sequence[Any]) -> list[Any]:
    by_id: dict[int, Any] = {}
    for node in nodes:
        layer = node.operation
        if isinstance(layer, keras.layers.Layer):
            every = [*layer.variables, *layer.metrics_variables]
            by_id.update((id(v), v) for v in every)
        arguments = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        by_id.update((id(v), v) for v in arguments if isinstance(v, keras.Variable))
    return list(by_id.values())


def _values(nodes: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    # `variable.value` would be converted inside a layer with half precision. On JAX,
    # the current values are in the outer scope, which only a new scope can access.
    around = _around()
    values = [around and around.get_current_value(v) for v in variables]
    values = [
        keras.ops.convert_to_tensor(v._value) if value is None else value
        for v, value in zip(variables, values, strict=True)
    ]
    weights = _weights(nodes)
    return [
        # Copied, because torch would change a value in place that the backward pass
        # still needs.
        value if id(v) in weights else keras.ops.copy(value)
        for v, value in zip(variables, values, strict=True)
    ]


def _around() -> Any:
    with keras.StatelessScope(initialize_variables=False) as here:
        return here.original_scope


def _weights(nodes: Sequence[Any]) -> set[int]:
    # `layer.trainable_variables` omits frozen weights.
    return {
        id(v)
        for node in nodes
        if isinstance(node.operation, keras.layers.Layer)
        for layer in sublayers(node.operation)
        for v in layer._trainable_variables
    }


def _check_no_weight(changed: Sequence[Any], segment: Segment) -> None:
    """Raises an error for a trained weight that the forward pass assigns.

    Its gradient would refer to the old value instead of the new one.
    """
    weights = _weights(segment.nodes)
    for variable in changed:
        if variable.trainable and id(variable) in weights:
            raise ModelError(
                "A layer assigns a trained weight in its forward pass, as "
                "SpectralNormalization does, so this pass cannot run a second time. "
                f"Received: {variable.path!r}. Next: exclude the layer; "
                "km.rematerialize does so in the last of its `segments`."
            )


def _check_only_own(
    scope: keras.StatelessScope, variables: Sequence[Any], segment: Segment
) -> None:
    if len(scope.state_mapping) > len(variables):
        names = [node.operation.name for node in segment.nodes]
        raise ModelError(
            "A layer assigns a variable of another object, such as the state of "
            "Keras's global random numbers, so it cannot run a second time. "
            "Expected: every variable and every keras.random.SeedGenerator is an "
            f"attribute of the layer that uses it. Received: one among {names}."
        )
