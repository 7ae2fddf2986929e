"""What became of every weight, and of every call that stays float."""

import math
from collections import defaultdict
from typing import Any

import numpy as np

from kerasmem.compression.noise import sqnr_db
from kerasmem.compression.quantize.static.plan import Plan
from kerasmem.compression.quantize.static.product import IntegerProduct
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange


def account(model: Any, plan: Plan, made: dict[str, Any]) -> list[WeightChange]:
    """Return a change for every weight, and one for every other call that stays float.

    Args:
        model: the float model.
        plan: what became of its calls.
        made: the new layers by the names of calls.
    """
    names: dict[int, list[str]] = defaultdict(list)
    for call in plan.calls.calls:
        names[id(call.layer)].append(call.name)
    changes = [_of_weight(w, plan, made, names[id(w.block)]) for w in weights(model)]
    told = {id(weight.block) for weight in weights(model)}
    return changes + [
        _change((call.layer.name, call.name, 0), _float(plan.reasons[call.name]))
        for call in plan.calls.calls
        if call.name in plan.reasons and id(call.layer) not in told
    ]


def _of_weight(
    weight: Weight, plan: Plan, made: dict[str, Any], names: list[str]
) -> WeightChange:
    place = weight.block.name, weight.path, weight.nbytes
    layers = [made[n] for n in names if isinstance(made.get(n), IntegerProduct)]
    if not layers:
        reasons = [plan.reasons[name] for name in names if name in plan.reasons]
        return _change(place, _float(reasons[0] if reasons else "is not used"))
    if weight.variable.name == "bias":
        return _change(place, "int32", after=4 * layers[-1].channels)
    kernels = [layer for layer in layers if _holds(layer, weight)]
    if not kernels:
        return _change(place, "in the factors of a channel, int8", after=0)
    own = (kernels[0].kernel_scale, kernels[0].mantissa, kernels[0].exponent)
    after = len(kernels) * sum(map(nbytes, (kernels[0].kernel, *own)))
    values = to_numpy(weight.variable)
    detail = f"int8 with {kernels[0].channels} scales, times int8"
    if not values.any():
        detail += ", all zero"
    noise = sqnr_db(values, _rounded(kernels[0]).reshape(values.shape))
    return _change(place, detail, after=after, sqnr=noise)


def _holds(layer: Any, weight: Weight) -> bool:
    shape = weight.variable.shape
    return len(shape) > 1 and math.prod(shape) == math.prod(layer.kernel_shape)


def _rounded(layer: Any) -> np.ndarray:
    matrix = to_numpy(layer.kernel).reshape(-1, layer.channels)
    return matrix * to_numpy(layer.kernel_scale)


def _float(reason: str) -> str:
    return f"stays float: {reason}"


def _change(
    place: tuple[str, str, int],
    detail: str,
    *,
    after: int | None = None,
    sqnr: float | None = None,
) -> WeightChange:
    layer, path, before = place
    return WeightChange(
        layer=layer,
        weight=path,
        technique="quantize",
        changed=after is not None,
        detail=detail,
        before_bytes=before,
        after_bytes=before if after is None else after,
        sqnr_db=sqnr,
    )
