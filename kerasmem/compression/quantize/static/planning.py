"""Finding what of the calls of a model can be computed with codes."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import keras

from kerasmem.compression.quantize.activations.calls import Calls
from kerasmem.compression.quantize.static.base import RELU
from kerasmem.compression.quantize.static.kinds import (
    OpSpec,
    is_identity,
    is_relu,
    kind_of,
    unsupported_call_of,
)
from kerasmem.compression.quantize.static.plan import Plan, Step, join
from kerasmem.compression.quantize.static.split import activation_of
from kerasmem.graph.calls import Call
from kerasmem.graph.layers import Weight

Stays = Callable[[Any], str | None]
"""Returns why a layer has to stay float, None if it need not."""


def staying_float(excluded: Iterable[Weight]) -> Stays:
    """Return what tells of the layers that have these weights."""
    layers = {id(weight.block) for weight in excluded}
    return lambda layer: "is excluded" if id(layer) in layers else None


def make_plan(
    calls: Calls, stays: Stays = lambda _: None, kept: Mapping[str, str] | None = None
) -> Plan:
    """Return what of a model can be computed with codes.

    A layer with a kernel can wherever it stands; others only behind one, or at the
    beginning: codes are not made for their sake.

    Args:
        calls: those of the model.
        stays: tells of layers that are to stay float.
        kept: why more calls are to, by their names in the model.
    """
    plan = Plan(calls)
    takers = _takers(plan)
    coded = {number for number in calls.inputs if _is_float(calls, number)}
    for call in calls.calls:
        if call.name in plan.gone:
            continue
        found = kind_of(call.operation)
        reason = stays(call.layer) or (kept or {}).get(call.whole)
        reason = reason or _why_float(plan, call, coded)
        if found is None or reason is not None:
            plan.reasons[call.name] = reason or ""
            continue
        step = _with_relu(plan, _step(plan, call, found), takers)
        plan.steps[call.name] = step
        coded.add(step.output)
        if step.kind.codes is not None:
            plan.fixed[step.output] = step.kind.codes
        if step.kind.keeps_scale:
            for number in step.inputs:
                join(plan.shared, number, step.output)
    return plan


def _takers(plan: Plan) -> dict[int, list[Call]]:
    """Return the calls that take each tensor, and note those that hand it on."""
    takers: dict[int, list[Call]] = defaultdict(list)
    for call in plan.calls.calls:
        if is_identity(call.operation) and not call.is_trained:
            plan.same[call.outputs[0]] = call.inputs[0]
            plan.gone.add(call.name)
            continue
        for number in call.inputs:
            takers[plan.number(number)].append(call)
    return takers


def _why_float(plan: Plan, call: Call, coded: set[int]) -> str | None:
    found = kind_of(call.operation)
    if found is None:
        return f"{type(call.operation).__name__} has no form in int8"
    if call.is_trained:
        return "is called with training=True"
    numbers = [plan.number(number) for number in call.inputs]
    if not all(_is_float(plan.calls, number) for number in numbers):
        return "takes what are no floats"
    tensors = [plan.calls.tensors[number] for number in numbers]
    arguments = call.arguments({n: plan.calls.tensors[n] for n in call.inputs})
    reason = unsupported_call_of(call.operation, tensors, arguments)
    if reason is None and not found.starts_int8 and not coded & set(numbers):
        return "stands behind layers that stay float"
    if found.codes is not None and plan.ends_in(call.outputs[0]):
        return "is the end of the model"
    if (
        found.keeps_scale
        and len(numbers) > 1
        and any(map(plan.has_fixed_codes, numbers))
    ):
        return "joins what can have only codes of its own"
    return reason


def _step(plan: Plan, call: Call, kind: OpSpec) -> Step:
    inputs = tuple(plan.number(number) for number in call.inputs)
    activation = activation_of(call.operation)
    within = activation if activation in RELU else None
    return Step(kind, inputs, call.outputs[0], within, _keeps_mask(call))


def _with_relu(plan: Plan, step: Step, takers: dict[int, list[Call]]) -> Step:
    """Return the step with the ReLU that is all that takes its output."""
    after = takers[step.output]
    if not step.kind.fuses_relu or step.activation or plan.ends_in(step.output):
        return step
    if len(after) != 1 or not is_relu(after[0].operation):
        return step
    plan.gone.add(after[0].name)
    return replace(
        step,
        output=after[0].outputs[0],
        activation=activation_of(after[0].operation),
        keeps_mask=step.keeps_mask and _keeps_mask(after[0]),
    )


def _keeps_mask(call: Call) -> bool:
    """Return whether Keras hands a mask on; operations that are no layers never do."""
    return getattr(call.operation, "supports_masking", False)


def _is_float(calls: Calls, number: int) -> bool:
    return keras.backend.is_float_dtype(calls.tensors[number].dtype)
