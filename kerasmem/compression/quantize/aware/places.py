"""Tensors of a model to round by fake quantization."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kerasmem.compression.quantize.fold import fold_plan
from kerasmem.compression.quantize.static.kinds import is_relu, kind_of
from kerasmem.compression.quantize.static.mostly_float import warn_if_mostly_float
from kerasmem.compression.quantize.static.partition import plan_of
from kerasmem.compression.quantize.static.plan import Ends, StaticPlan, Stays
from kerasmem.compression.quantize.static.split_layers import RELU, activation_of
from kerasmem.graph.calls import Call
from kerasmem.graph.flat_calls import Calls, flatten
from kerasmem.graph.layer_table import entry_of
from kerasmem.types import Layer, Model, Operation

INSIDE = "depthwise"
"""Suffix of the inner tensor of a separable convolution."""
LINEAR = "linear"
"""Suffix of the input of the activation of a Dense."""


def has_linear(layer: Layer) -> bool:
    """Return whether the input of a Dense's activation is rounded.

    A rectifier is fused with the product instead.
    """
    is_dense = entry_of(layer).kernel == "dense"
    return is_dense and activation_of(layer) not in (None, *RELU)


@dataclass(frozen=True)
class RoundingPoint:
    """A position where a tensor is rounded.

    Args:
        tensor: Name of the tensor that determines the range, as in `flatten`.
        others: Names of more tensors with the same range. An example is a product whose
            BatchNormalization will be folded.
        ends: Fixed range. If None, the range follows the training data.
    """

    tensor: str
    others: tuple[str, ...] = ()
    ends: Ends | None = None


def places(model: Model, plan: StaticPlan | None = None) -> dict[str, RoundingPoint]:
    """Return where to round tensors, by tensor name and in call order.

    These are the float inputs of the model, the float outputs of its calls and the
    inner tensors of separable convolutions. A `plan` adds the inputs of activations in
    a Dense. Some tensors are never rounded:

    - the input of a fused BatchNormalization or rectifier,
    - outputs of calls that only move values.

    If only a max pooling reads a tensor, the smaller output of the pooling is rounded
    instead. The rounded values are equal.

    Args:
        model: Model with a graph. Nested models are opened.
        plan: Plan of `Quantize("int8-static")` that limits the tensors. If None, all
            tensors.
    """
    calls = flatten(model)
    folds = _folded(model, calls)
    inputs = [calls.names[n] for n in calls.inputs if calls.is_float(n)]
    points = {name: RoundingPoint(name) for name in inputs}
    for call in calls.calls:
        if entry_of(call.operation).kernel == "separable":
            within = f"{call.name}/{INSIDE}"
            points[within] = RoundingPoint(within)
        if plan is not None and has_linear(call.operation):
            before = f"{call.name}/{LINEAR}"
            points[before] = RoundingPoint(before)
        points |= _outputs(call, _only_reader(call, calls), calls, folds)
    return points if plan is None else _coded(points, plan)


def plan_of_training(model: Model, stays: Stays) -> StaticPlan:
    """Return the plan for a model whose BatchNormalization is folded after training.

    `stays` returns why a layer stays float, or None.

    Raises:
        ModelError: If no layer supports int8.
    """
    # Folding comes first, so it also applies to a BatchNormalization in `stays`.
    norms = {id(n) for taker in fold_plan(model).takers.values() for n in taker.norms}
    plan = plan_of(model, lambda layer: None if id(layer) in norms else stays(layer))
    warn_if_mostly_float(plan)
    return plan


def _coded(
    points: Mapping[str, RoundingPoint], plan: StaticPlan
) -> dict[str, RoundingPoint]:
    """Return the planned positions, including the outputs of calls that move floats."""
    coded_names = plan.coded
    by_place = {
        at: place for at, place in points.items() if place.tensor in coded_names
    }
    for call in plan.calls.calls:
        if call.name in plan.reasons and _moves(call.operation):
            for name in coded_names.intersection(call.output_names):
                by_place.setdefault(name, RoundingPoint(name))
    ranges = plan.ranges({})
    return {at: replace(p, ends=ranges.get(p.tensor)) for at, p in by_place.items()}


def _folded(model: Model, calls: Calls) -> dict[str, str]:
    folded_norms = {id(n) for t in fold_plan(model).takers.values() for n in t.norms}
    products: dict[str, str] = {}
    for call in calls.calls:
        reader = _only_reader(call, calls)
        if reader and id(reader.operation) in folded_norms:
            products[reader.name] = products.get(call.name, call.name)
    return products


def _outputs(
    call: Call, reader: Call | None, calls: Calls, folded: Mapping[str, str]
) -> dict[str, RoundingPoint]:
    if _moves(call.operation) or (reader and _runs_as_one(call, reader, folded)):
        return {}
    names = call.output_names
    is_pooled = reader and entry_of(reader.operation).class_name.startswith("MaxPool")
    at = reader.output_names if reader and is_pooled else names
    others = (folded[call.name],) if call.name in folded else ()
    return {
        place: RoundingPoint(name, others)
        for place, name, number in zip(at, names, call.outputs, strict=True)
        if calls.is_float(number)
    }


def _only_reader(call: Call, calls: Calls) -> Call | None:
    if len(call.outputs) != 1 or call.outputs[0] in calls.outputs:
        return None
    readers = [c for c in calls.calls for i in c.inputs if i == call.outputs[0]]
    return readers[0] if len(readers) == 1 else None


def _moves(operation: Operation) -> bool:
    return entry_of(operation, subclasses=True).moves


def _runs_as_one(call: Call, reader: Call, folded: Mapping[str, str]) -> bool:
    if reader.name in folded:
        return True
    return is_relu(reader.operation) and _takes_relu(call.operation)


def _takes_relu(operation: Operation) -> bool:
    if entry_of(operation, subclasses=True).kernel not in (None, "embedding"):
        return activation_of(operation) is None
    kind = kind_of(operation)
    return kind is not None and kind.fuses_relu
