"""What quantized layers lose in what they make, each given what the float one gets."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from kerasmem.compression.account import decibels
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.files.data import input_batches
from kerasmem.graph.layers import blocks, weights
from kerasmem.graph.observe import LayerCall, observe
from kerasmem.graph.values import not_finite, to_numpy
from kerasmem.records import WeightChange

SAMPLES, BATCH_SIZE = 128, 32
"""Most samples to look at, and how many go through the model at a time."""


def quantized_pairs(original: Any, quantized: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every layer that holds quantized weights, the float one first.

    Args:
        original: a model.
        quantized: a copy of it with quantized weights.
    """
    for before, after in zip(blocks(original), blocks(quantized), strict=True):
        if quantized_variables(after):
            yield before, after


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
    pairs = {id(pair[0]): pair for pair in quantized_pairs(original, quantized)}
    sums: dict[int, np.ndarray] = {}

    def see(call: LayerCall) -> None:
        before, after = pairs[id(call.layer)]
        exact = _arrays(before, call.outputs)
        rounded = _arrays(after, after(*call.args, **call.kwargs))
        seen = sums.setdefault(id(before), np.zeros(2))
        for want, have in zip(exact, rounded, strict=True):
            seen += np.square(want).sum(), np.square(want - have).sum()

    batches = input_batches(data, SAMPLES, BATCH_SIZE)
    observe(original, batches, [before for before, _ in pairs.values()], outputs=see)
    ratios = {layer: decibels(*seen.tolist()) for layer, seen in sums.items()}
    return [
        replace(change, output_sqnr_db=ratios.get(id(weight.block)))
        if change.changed
        else change
        for weight, change in zip(weights(original), changes, strict=True)
    ]


def _arrays(layer: Any, outputs: Any) -> list[np.ndarray]:
    arrays = [to_numpy(y).astype(np.float64) for y in keras.tree.flatten(outputs)]
    if not all(np.isfinite(array).all() for array in arrays):
        raise not_finite(layer)
    return arrays
