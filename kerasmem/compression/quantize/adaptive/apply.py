"""Adaptive rounding of a model, layer by layer, before its weights are stored."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.account import sqnr_db
from kerasmem.compression.quantize.adaptive.inputs import (
    is_product_of_matrices,
    matrices,
    moments_of,
    of_matrices,
)
from kerasmem.compression.quantize.adaptive.relaxation import adapted_codes
from kerasmem.compression.quantize.apply import Exclude, choose, place_of
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.math import LIMIT, finite
from kerasmem.errors import ModelError
from kerasmem.graph.layers import blocks, weights
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_LARGEST = 4608
"""So many products may a sum have: its moments are a matrix of that size."""


def round_adaptively(
    original: Any, model: Any, choice: "Quantize", left: Exclude, data: Any
) -> dict[int, float | None]:
    """Round kernels of `model` in place, to values that storing leaves as they are.

    Every layer is given what the rounded layers before it make, and is to make what the
    float model makes there. Dense, convolutions and depthwise ones by themselves are
    rounded so, of at most 4,608 products in a sum; the others are not touched.

    Args:
        original: a model.
        model: a copy of it.
        choice: how its weights are to be stored, symmetric and in 4 or 8 bits.
        left: tells of weights to leave alone.
        data: samples in any form that `kerasmem.files.data` lists; the first 512 count.

    Returns:
        What is left of the weights that were rounded, in dB, by the ids of the
        variables of `original`.

    Raises:
        DataError: if what goes into a layer is not finite.
        ModelError: if there is nothing to quantize or to round so, or a weight is not
            finite.
    """
    chosen = {
        id(weight.variable): weight
        for weight, reason in choose(model, choice, left)
        if reason is None
    }
    for weight in chosen.values():
        finite(to_numpy(weight.variable), weight.path)  # before anything is changed
    ratios: dict[int, float | None] = {}
    for before, after in zip(blocks(original), blocks(model), strict=True):
        if not is_product_of_matrices(after) or id(after.kernel) not in chosen:
            continue
        exact = to_numpy(after.kernel).astype(np.float32)
        as_matrices = matrices(after, exact).astype(np.float64)
        if as_matrices.shape[1] > _LARGEST:
            continue
        coding = place_of(chosen[id(after.kernel)], choice, 1).coding
        steps = matrices(after, coding.steps(exact)).astype(np.float64)
        moments = moments_of((original, model), (before, after), data)
        if moments is None:
            continue
        codes = adapted_codes(moments, as_matrices, steps, _limit(coding))
        found = of_matrices(after, codes * steps)
        after.kernel.assign(found)
        ratios[id(before.kernel)] = sqnr_db(exact, found)
    if not ratios:
        raise ModelError(
            f"The model {original.name!r} has no weight to round adaptively. Expected: "
            "a Dense, a convolution of one or two dimensions or a depthwise one, by "
            "itself and not excluded. Next: rounding='nearest'."
        )
    return ratios


def told(
    changes: Sequence[WeightChange], original: Any, ratios: dict[int, float | None]
) -> list[WeightChange]:
    """Return changes that tell of weights that were rounded adaptively.

    Args:
        changes: one for every weight of `original`, in order.
        original: the float model.
        ratios: what `round_adaptively` returned.
    """
    return [
        replace(
            change,
            detail=f"{change.detail}, rounded adaptively",
            sqnr_db=ratios[id(weight.variable)],
        )
        if id(weight.variable) in ratios
        else change
        for weight, change in zip(weights(original), changes, strict=True)
    ]


def _limit(coding: Coding) -> int:
    return LIMIT >> (8 - coding.bits)
