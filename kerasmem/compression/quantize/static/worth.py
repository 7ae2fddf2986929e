"""The plan of a model: codes where they gain something, layers whole where not."""

from typing import Any

import numpy as np

from kerasmem.compression.quantize.activations.calls import flatten
from kerasmem.compression.quantize.given_ranges import Ranges
from kerasmem.compression.quantize.static.factors import affine_factors
from kerasmem.compression.quantize.static.kinds import is_affine
from kerasmem.compression.quantize.static.plan import Plan, Step
from kerasmem.compression.quantize.static.planning import Stays, make_plan
from kerasmem.compression.quantize.static.split import split

_COARSE = 4
"""So many of its own steps a normalization may make of one step of what it takes."""


def plan_of(
    model: Any, stays: Stays = lambda _: None, ranges: Ranges | None = None
) -> Plan:
    """Return what becomes of every call of a model.

    Inputs of the model stay float up to the first layer that gains by codes, where
    layers that stay float or a normalization of values that are too unlike for one
    scale come before it.

    Args:
        model: a built model with a graph.
        stays: tells why a layer is to stay float, None if it need not.
        ranges: of its tensors; None where they are not known yet.

    Raises:
        ConfigError: if a range is missing, or is none.
    """
    kept: dict[str, str] = {}
    while True:
        calls = flatten(model, lambda x: None if stays(x) else split(x), kept)
        plan = make_plan(calls, stays, kept)
        more = _apart_in_vain(plan) or _coded_in_vain(plan)
        if not more and ranges is not None:
            more = _too_coarse(plan, ranges)
        if not more:
            return plan
        kept |= more


def _apart_in_vain(plan: Plan) -> dict[str, str]:
    """Return calls that were taken apart and stay float, with the reasons."""
    parts = [call for call in plan.calls.calls if call.operation is not call.layer]
    coded = {call.whole for call in parts if call.name not in plan.reasons}
    float_kernels = {
        id(call.layer): plan.reasons[call.name]
        for call in parts
        if call.name in plan.reasons and call.operation.weights
    }
    found = {}
    for call in parts:
        if id(call.layer) in float_kernels:
            found[call.whole] = float_kernels[id(call.layer)]
        elif call.whole not in coded:
            found.setdefault(call.whole, plan.reasons[call.name])
    return found


def _coded_in_vain(plan: Plan) -> dict[str, str]:
    """Return calls at the beginning whose codes only layers that stay float take."""
    leading = _leading(plan)
    worth = set(map(plan.number, plan.calls.outputs))
    for name, step in plan.steps.items():
        if name not in leading:
            worth.update(step.inputs)
    found = {}
    for call in reversed(plan.calls.calls):
        step = leading.get(call.name)
        if step is not None and step.output in worth:
            worth.update(step.inputs)
        elif step is not None:
            found[call.whole] = "leads to layers that stay float"
    return found


def _too_coarse(plan: Plan, ranges: Ranges) -> dict[str, str]:
    """Return normalizations of inputs that one scale would leave little of."""
    codes, leading = plan.codes(ranges), _leading(plan)
    found = {}
    for call in plan.calls.calls:
        step = leading.get(call.name)
        if step is None or not is_affine(call.operation):
            continue
        shape = plan.calls.tensors[step.inputs[0]].shape
        factors, _ = affine_factors(call.operation, shape) or (np.zeros(1), None)
        made = codes[step.inputs[0]].scale * np.abs(factors).max()
        if made > _COARSE * codes[step.output].scale:
            found[call.whole] = "takes values that are too unlike for one scale"
    return found


def _leading(plan: Plan) -> dict[str, Step]:
    """Return the steps with no layer before them that gains by codes, by name."""
    behind: set[int] = set()
    found = {}
    for name, step in plan.steps.items():
        if step.kind.gains or behind & set(step.inputs):
            behind.add(step.output)
        else:
            found[name] = step
    return found
