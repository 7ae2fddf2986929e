"""Rounding kernels as suits what their layers make of data."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.account import sqnr_db
from kerasmem.compression.quantize.adaptive import adapted_codes
from kerasmem.compression.quantize.apply import Exclude, name_of, weight_plan
from kerasmem.compression.quantize.config import ADAPTIVE, SECOND_ORDER
from kerasmem.compression.quantize.layer import Place
from kerasmem.compression.quantize.math import LIMIT, finite
from kerasmem.compression.quantize.moments import (
    Moments,
    is_product_of_matrices,
    matrices,
    moments_of,
    of_matrices,
)
from kerasmem.compression.quantize.second_order import second_order_codes
from kerasmem.errors import ModelError
from kerasmem.graph.layers import Weight, weights
from kerasmem.graph.values import to_numpy

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_LARGEST = 4608
"""So many products may a sum have: its moments are a matrix of that size."""

_TURNS = 8
"""So often samples go through the model, each time for as many layers."""

Codes = Callable[[Moments, np.ndarray, np.ndarray, int], np.ndarray]
_CODES: dict[str, Codes] = {ADAPTIVE: adapted_codes, SECOND_ORDER: second_order_codes}
ROUNDED = {ADAPTIVE: "rounded adaptively", SECOND_ORDER: "rounded by GPTQ"}
"""What is said of a weight that was rounded so."""


def round_on_data(
    original: Any, model: Any, config: "Quantize", exclude: Exclude, data: Any
) -> tuple[dict[int, float | None], dict[str, np.ndarray]]:
    """Round kernels of `model` in place, to values that storing leaves as they are.

    Layers are given what the rounded ones before them make, of an earlier turn, and are
    to make what the float model makes there. Dense, EinsumDense, convolutions and
    depthwise ones are rounded so, of at most 4,608 products in a sum; the others are
    not touched.

    Args:
        original: a model.
        model: a copy of it.
        config: how its weights are to be stored, symmetric and in 4 or 8 bits.
        exclude: tells of weights to leave alone.
        data: samples in any form that `kerasmem.files.data` lists; the first 512 count.

    Returns:
        What is left of the weights that were rounded, in dB, by the ids of the
        variables of `original`; and their scales, by the names of the weights.

    Raises:
        DataError: if what goes into a layer is not finite.
        ModelError: if there is nothing to quantize or to round so, or a weight is not
            finite.
    """
    places: dict[int, Place] = {}
    for weight, place in weight_plan(model, config, exclude):
        if isinstance(place, Place):
            finite(to_numpy(weight.variable), weight.path)  # before anything changes
            places[id(weight.variable)] = place
    pairs = [
        (before, after)
        for before, after in zip(weights(original), weights(model), strict=True)
        if id(after.variable) in places and _is_rounded_so(after)
    ]
    ratios: dict[int, float | None] = {}
    scales: dict[str, np.ndarray] = {}
    for turn in _turns(pairs):
        # Before anything is rounded both make the same.
        models = (original if ratios else model, model)
        layers = [(b.owner if ratios else a.owner, a.owner) for b, a in turn]
        moments = moments_of(models, layers, data)
        for (before, after), own in zip(turn, moments, strict=True):
            if own is None:
                continue
            place = places[id(after.variable)]
            ratio, name = id(before.variable), name_of(model, after)
            ratios[ratio], scales[name] = _round(after, own, place, config.rounding)
    if not ratios:
        raise ModelError(
            f"The model {original.name!r} has no weight that can be "
            f"{ROUNDED[config.rounding]}. Expected: a Dense, an EinsumDense, a "
            "convolution of one or two dimensions or a depthwise one, not excluded. "
            "Next: rounding='nearest'."
        )
    return ratios, scales


def _is_rounded_so(weight: Weight) -> bool:
    owner = weight.owner
    if not is_product_of_matrices(owner) or weight.variable is not owner.kernel:
        return False
    return matrices(owner, np.empty(owner.kernel.shape, "int8")).shape[1] <= _LARGEST


def _turns(
    pairs: list[tuple[Weight, Weight]],
) -> Iterator[list[tuple[Weight, Weight]]]:
    size = -(-len(pairs) // _TURNS) or 1
    return (pairs[i : i + size] for i in range(0, len(pairs), size))


def _round(
    weight: Weight, moments: Moments, place: Place, rounding: str
) -> tuple[float | None, np.ndarray]:
    """Round a weight in place; return what is left of it in dB, and its scales."""
    exact = to_numpy(weight.variable).astype(np.float32)
    coding = place.coding
    scales = coding.encode(exact, place.scales, closely=place.closely).scales
    layer, limit = weight.owner, LIMIT >> (8 - coding.bits)
    steps = matrices(layer, coding.steps(exact, scales)).astype(np.float64)
    values = matrices(layer, exact).astype(np.float64)
    codes = _CODES[rounding](moments, values, steps, limit)
    rounded = of_matrices(layer, codes * steps)
    weight.variable.assign(rounded)
    return sqnr_db(exact, rounded), scales
