"""Walking a model and making its kernels int8."""

import math
from typing import Any

import keras

from kerasmem.compression.quantize.layer import Place, to_int8
from kerasmem.compression.quantize.variable import forget_float_weights
from kerasmem.errors import ModelError
from kerasmem.graph.kernels import is_kernel, reduced_axes
from kerasmem.graph.layers import Weight, sublayers, weights
from kerasmem.records import WeightChange


def quantize_weights(model: Any) -> list[WeightChange]:
    """Make every kernel and embedding table of `model` int8, in place.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ModelError: if the model has no kernel that is float, or one with NaN.
    """
    changes, places = [], {}
    for weight in weights(model):
        reason = _why_not(weight)
        changes.append(_change(weight, reason))
        if reason is None:
            block, found = places.setdefault(id(weight.block), (weight.block, []))
            found.append(_place(block, weight))
    if not places:
        raise ModelError(
            f"The model {model.name!r} has nothing to quantize: none of its "
            f"{len(changes)} weights is a float kernel or embedding table."
        )
    for block, found in places.values():
        to_int8(block, found)
    forget_float_weights(sublayers(model))
    return changes


def _why_not(weight: Weight) -> str | None:
    dtype = keras.backend.standardize_dtype(weight.variable.dtype)
    if not keras.backend.is_float_dtype(dtype):
        return f"is {dtype} already"
    if not is_kernel(weight):
        return "is no kernel or embedding table"
    if weight.attribute is None:
        return "is kept in a list, where no layer can be given another weight"
    return None


def _place(block: Any, weight: Weight) -> Place:
    layers = sublayers(block)
    index = next(i for i, layer in enumerate(layers) if layer is weight.owner)
    return index, str(weight.attribute), reduced_axes(weight)


def _change(weight: Weight, reason: str | None) -> WeightChange:
    after, detail = weight.nbytes, reason
    if reason is None:
        axes = reduced_axes(weight)
        kept = [n for i, n in enumerate(weight.variable.shape) if i not in axes]
        after = weight.size + 4 * math.prod(kept)
        detail = f"int8 with {math.prod(kept)} scales"
    return WeightChange(
        layer=weight.block.name,
        weight=weight.path,
        technique="quantize",
        changed=reason is None,
        detail=str(detail),
        before_bytes=weight.nbytes,
        after_bytes=after,
    )
