"""Layers that compute with floats in a model of codes: their kernels in int8."""

from typing import Any

from kerasmem.compression.quantize.apply import (
    Left,
    channel_axes,
    largest_block,
    placed,
    store,
    why_not_storable,
)
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.left_float import why_no_kernel
from kerasmem.graph.kernels import is_kernel
from kerasmem.graph.layers import weights
from kerasmem.records import WeightChange


def store_kernels(model: Any, granularity: str, left: Left) -> dict[int, WeightChange]:
    """Store the float kernels and embedding tables of a model as int8, in place.

    Args:
        model: a built model, some of whose layers compute with codes.
        granularity: `"channel"` or `"tensor"`, what shares a scale.
        left: tells of weights that are to stay float.

    Returns:
        What became of every weight, by the id of the variable that it was.

    Raises:
        ModelError: if one holds NaN or infinity.
    """
    everything = list(weights(model))
    reasons = [
        (weight, why or _why_float(weight, left))
        for weight, why in why_not_storable(model, everything, "int8")
    ]
    block = largest_block(everything)
    places = {
        id(weight): placed(
            weight, Coding("int8", channel_axes(weight), granularity), block
        )
        for weight, why in reasons
        if why is None
    }
    changes = store(model, reasons, places)
    return {
        id(weight.variable): change
        for weight, change in zip(everything, changes, strict=True)
    }


def _why_float(weight: Any, left: Left) -> str | None:
    if left(weight):
        return "is excluded"
    return None if is_kernel(weight) else why_no_kernel(weight)
