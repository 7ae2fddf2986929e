"""What quantized layers lose in what they make, on data."""

from dataclasses import replace
from typing import Any

import numpy as np

from kerasmem.compression.noise import decibels
from kerasmem.compression.quantize.repair.side_by_side import run_side_by_side
from kerasmem.graph.layers import weights
from kerasmem.records import WeightChange


def with_output_error(
    changes: list[WeightChange], original: Any, quantized: Any, data: Any
) -> list[WeightChange]:
    """Return changes that tell what quantized layers lose in what they make.

    Each layer is given what the float model gives it, so that the figure tells of this
    layer alone.

    Args:
        changes: one for every weight of `original`, in order.
        original: a model.
        quantized: a copy of it with quantized weights.
        data: samples in any form that `kerasmem.files.data` lists; the first 128 are
            taken, batch by batch.

    Raises:
        DataError: if what comes out of a layer is not finite.
    """
    sums: dict[int, np.ndarray] = {}

    def see(layer: Any, exact: list[np.ndarray], rounded: list[np.ndarray]) -> None:
        seen = sums.setdefault(id(layer), np.zeros(2))
        for want, have in zip(exact, rounded, strict=True):
            seen += np.square(want).sum(), np.square(want - have).sum()

    run_side_by_side(original, quantized, data, see)
    ratios = {layer: decibels(*seen.tolist()) for layer, seen in sums.items()}
    return [
        replace(change, output_sqnr_db=ratios.get(id(weight.block)))
        if change.changed
        else change
        for weight, change in zip(weights(original), changes, strict=True)
    ]
