"""What became of every weight, and of every call that stays float."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from kerasmem.compression.account import sqnr_db
from kerasmem.compression.quantize.repair.kernels import is_separable
from kerasmem.compression.quantize.static.kinds import is_affine
from kerasmem.compression.quantize.static.plan import Plan
from kerasmem.compression.quantize.static.product import IntegerProduct
from kerasmem.graph.calls import Call
from kerasmem.graph.layers import Weight
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange

_FACTORS = "factors of a channel, int8"


@dataclass
class _Made:
    """What there is in layers of codes for a weight, or for a layer without any.

    Args:
        detail: what it is.
        variables: those that hold it; scales and multipliers go with the kernel.
        product: the first layer that has its codes, None for a bias.
    """

    detail: str
    variables: list[Any] = field(default_factory=list)
    product: Any = None


def account(
    plan: Plan,
    layers: Mapping[str, Any],
    everything: Sequence[Weight],
    stored: Mapping[int, WeightChange],
) -> list[WeightChange]:
    """Return a change for every weight, and for calls of layers without any.

    The bytes after it add up to those of the new model's weights.

    Args:
        plan: what became of the calls of the float model.
        layers: the new layers by the names of calls.
        everything: the weights of the float model.
        stored: what became of those that are in the new model, by the ids of the
            variables that they were.
    """
    # Not from the layers: those that stay float have other weights by now.
    own: dict[int, dict[str, Any]] = defaultdict(dict)
    for weight in everything:
        own[id(weight.block)].setdefault(weight.variable.name, weight.variable)
    calls: dict[int, list[Call]] = defaultdict(list)
    made: dict[int, _Made] = {}
    for call in plan.calls.calls:
        calls[id(call.layer)].append(call)
        if isinstance(layers.get(call.name), IntegerProduct):
            _note(call, layers[call.name], own.get(id(call.layer), {}), made)
    reasons = {
        layer: [plan.reasons[call.name] for call in each if call.name in plan.reasons]
        for layer, each in calls.items()
    }
    changes = [
        _of_weight(weight, made, stored, reasons.get(id(weight.block), ()))
        for weight in everything
    ]
    bare = [each for layer, each in calls.items() if layer not in own]
    return changes + [
        change for each in bare for change in _of_bare_calls(plan, each, made)
    ]


def _note(
    call: Call, layer: Any, own: Mapping[str, Any], made: dict[int, _Made]
) -> None:
    """Note whose weights the variables of a new layer are.

    Args:
        call: what the layer computes.
        layer: the new layer.
        own: the weights of the float layer by name.
        made: is added to.
    """
    bias, detail = None, _FACTORS
    kernel = next(iter(own.values()), call.layer)
    if not is_affine(call.operation):
        kernel = own[_kernel_name(call)]
        bias = own["bias"] if call.operation.use_bias else None
        count = layer.channels
        detail = f"int8 with {count} scale{'s' * (count != 1)}, times int8"
    for variable in layer.variables:
        owner, told = kernel, _Made(detail, product=layer)
        if bias is not None and variable is layer.bias:
            owner, told = bias, _Made("int32")
        made.setdefault(id(owner), told).variables.append(variable)


def _kernel_name(call: Call) -> str:
    """Return the name of the weight of a layer that a part of it multiplies with."""
    if not is_separable(call.layer):
        return "kernel"
    depthwise = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
    is_first = isinstance(call.operation, depthwise)
    return "depthwise_kernel" if is_first else "pointwise_kernel"


def _of_weight(
    weight: Weight,
    made: Mapping[int, _Made],
    stored: Mapping[int, WeightChange],
    reasons: Sequence[str],
) -> WeightChange:
    own, left = made.get(id(weight.variable)), stored.get(id(weight.variable))
    place = weight.block.name, weight.path, weight.nbytes
    why = reasons[0] if reasons else "is not used"
    if own is None:
        return _of_float_weight(place, left, why)
    after, detail, sqnr = sum(map(nbytes, own.variables)), own.detail, None
    values = to_numpy(weight.variable)
    if own.product is not None and own.detail != _FACTORS:
        sqnr = sqnr_db(values, _rounded(own.product).reshape(values.shape))
        detail += "" if values.any() else ", all zero"
    if left is not None:
        after += left.after_bytes
        detail += f"; in some calls computed with floats: {why}"
    return _change(place, detail, after=after, sqnr=sqnr)


def _of_float_weight(
    place: tuple[str, str, int], left: WeightChange | None, why: str
) -> WeightChange:
    """Return the change of a weight that no layer of codes has by itself."""
    if left is None:
        return _change(place, f"in the {_FACTORS}", after=0)
    if not left.changed:
        return _change(place, f"stays float: {why}")
    detail = f"{left.detail}, computed with floats: {why}"
    return replace(left, layer=place[0], weight=place[1], detail=detail)


def _of_bare_calls(
    plan: Plan, calls: Sequence[Call], made: Mapping[int, _Made]
) -> list[WeightChange]:
    """Return the changes for the calls of a layer that has no weights."""
    changes = []
    layer = calls[0].layer
    if id(layer) in made:
        own = made[id(layer)]
        after = sum(map(nbytes, own.variables))
        changes.append(_change((layer.name, calls[0].name, 0), own.detail, after=after))
    return changes + [
        _change((layer.name, call.name, 0), f"stays float: {plan.reasons[call.name]}")
        for call in calls
        if call.name in plan.reasons
    ]


def _rounded(layer: Any) -> np.ndarray:
    matrix = to_numpy(layer.kernel).reshape(-1, layer.channels)
    return matrix * to_numpy(layer.kernel_scale)


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
