"""Partition of a model into int8 and float calls."""

from collections.abc import Mapping

import numpy as np

from kerasmem.compression.quantize.static.kinds import affine_factors, is_affine
from kerasmem.compression.quantize.static.plan import (
    Int8Call,
    Ranges,
    StaticPlan,
    Stays,
    make_plan,
)
from kerasmem.compression.quantize.static.split_layers import split
from kerasmem.errors import ModelError
from kerasmem.graph.calls import Call
from kerasmem.graph.flat_calls import flatten
from kerasmem.types import Model

_COARSE = 4
"""Maximum rounding step of a normalization's scaled input, in steps of its output."""


def plan_of(
    model: Model, stays: Stays = lambda _: None, ranges: Ranges | None = None
) -> StaticPlan:
    """Return the plan of every call of a model.

    Tensors that only float layers read are not rounded, and layers without a kernel
    stay float there. The first layers of the model stay float up to the first kernel in
    two cases: float layers come first, or values are too different for one scale before
    a normalization. `stays` returns why a layer stays float, or None.

    Raises:
        ConfigError: If a range is invalid.
        ModelError: If no layer supports int8.
    """
    float_calls: dict[str, str] = {}
    while True:
        calls = flatten(model, lambda x: None if stays(x) else split(x), float_calls)
        plan = make_plan(calls, stays, float_calls)
        coded_numbers = _wanted(plan)
        products = {s.output for s in plan.steps.values() if s.kind.starts_int8}
        plan.floats = products - coded_numbers
        more = _apart_in_vain(plan) or _coded_in_vain(plan, coded_numbers)
        if not more and ranges is not None:
            more = _too_coarse(plan, ranges)
        if not plan.steps:
            raise _nothing(model, plan.reasons)
        if not more:
            return plan
        float_calls |= more


def _nothing(model: Model, reasons: Mapping[str, str]) -> ModelError:
    causes = [f"{name!r} {reason}" for name, reason in reasons.items()]
    is_open = any("unknown size" in cause for cause in causes)
    advice = " Next: pass a fixed shape to the Input, such as (224, 224, 3)."
    return ModelError(
        f"The model {model.name!r} has nothing to quantize to int8-static. "
        f"Received: {'; '.join(causes[:3])}.{advice * is_open}"
    )


def _apart_in_vain(plan: StaticPlan) -> dict[str, str]:
    parts = [call for call in plan.calls.calls if call.operation is not call.layer]
    coded_wholes = {call.whole for call in parts if call.name not in plan.reasons}
    float_kernels = {
        id(call.layer): plan.reasons[call.name]
        for call in parts
        if call.name in plan.reasons and call.operation.weights
    }
    reasons = {}
    for call in parts:
        if id(call.layer) in float_kernels:
            reasons[call.whole] = float_kernels[id(call.layer)]
        elif call.whole not in coded_wholes:
            reasons.setdefault(call.whole, plan.reasons[call.name])
    return reasons


def _coded_in_vain(plan: StaticPlan, wanted: set[int]) -> dict[str, str]:
    return {
        call.whole: "only precedes layers that stay float"
        for call in plan.calls.calls
        if call.name in plan.steps
        and not _takes_codes(call, plan.steps[call.name], wanted)
    }


def _takes_codes(call: Call, step: Int8Call, wanted: set[int]) -> bool:
    # Keep all parts of a split layer with a kernel in int8.
    is_part = call.operation is not call.layer
    stays_whole = is_part and bool(getattr(call.layer, "weights", ()))
    return step.kind.starts_int8 or stays_whole or step.output in wanted


def _wanted(plan: StaticPlan) -> set[int]:
    """Return the numbers of tensors to round because of their readers.

    Readers are layers that benefit from int8 and layers whose own output is wanted.
    Outputs of the model and inputs of its last layer are wanted too, because int8 files
    contain both.
    """
    ends = set(map(plan.number, plan.calls.outputs))
    numbers = set(ends)
    for call in reversed(plan.calls.calls):
        step = plan.steps.get(call.name)
        if step is not None and _takes_codes(call, step, numbers):
            numbers.update(step.inputs)
        if call.name in plan.reasons and not ends.isdisjoint(call.outputs):
            numbers.update(map(plan.number, call.inputs))
    return numbers


def _too_coarse(plan: StaticPlan, ranges: Ranges) -> dict[str, str]:
    leading = _leading(plan)
    widths = {name: high - low for name, (low, high) in plan.ranges(ranges).items()}
    reasons = {}
    for call in plan.calls.calls:
        step = leading.get(call.name)
        if step is None or not is_affine(call.operation):
            continue
        shape = plan.calls.tensors[step.inputs[0]].shape
        factors, _ = affine_factors(call.operation, shape) or (np.zeros(1), None)
        before, after = (plan.calls.names[n] for n in (step.inputs[0], step.output))
        if widths[before] * np.abs(factors).max() > _COARSE * widths[after]:
            reasons[call.whole] = "has inputs that are too different for one scale"
    return reasons


def _leading(plan: StaticPlan) -> dict[str, Int8Call]:
    behind: set[int] = set()
    steps = {}
    for name, step in plan.steps.items():
        if step.kind.starts_int8 or behind & set(step.inputs):
            behind.add(step.output)
        else:
            steps[name] = step
    return steps
