"""Bias correction: what rounding adds to a layer's outputs on average is taken off.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019; the empirical form, on data.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.compression.quantize.apply import Exclude, quantize_weights
from kerasmem.compression.quantize.repair.kernels import has_channels
from kerasmem.compression.quantize.repair.output_error import (
    BATCH_SIZE,
    SAMPLES,
    quantized_pairs,
)
from kerasmem.files.data import input_batches
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import blocks, weights
from kerasmem.graph.observe import LayerCall, observe
from kerasmem.graph.values import not_finite, to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


def correct_biases(
    changes: list[WeightChange], original: Any, quantized: Any, data: Any
) -> list[WeightChange]:
    """Correct the biases of quantized layers in place; return changes that tell it.

    To the bias is added what the float layer makes before its activation less what the
    quantized one makes of the same inputs, as the mean over samples and places.

    Args:
        changes: one for every weight of `original`, in order.
        original: a model.
        quantized: a copy of it with quantized weights.
        data: samples in any form that `kerasmem.files.data` lists; the first 128 are
            taken, batch by batch.

    Raises:
        DataError: if what comes out of a layer is not finite.
    """
    means = _mean_shifts(original, quantized, data)
    told: dict[int, str] = {}
    for before, after in quantized_pairs(original, quantized):
        if id(before) in means:
            by = means[id(before)]
            _add(after.bias, by)
            told[id(before.bias)] = f"corrected by up to {np.abs(by).max():.2g}"
    return [
        replace(change, changed=True, detail=told[id(weight.variable)])
        if id(weight.variable) in told
        else change
        for weight, change in zip(weights(original), changes, strict=True)
    ]


def with_corrected_biases(
    model: Any, choice: "Quantize", data: Any, left: Exclude
) -> Any:
    """Return a copy of a float model with biases for weights that are to be rounded.

    Args:
        model: a built model.
        choice: how its weights are to be rounded.
        data: samples in any form that `kerasmem.files.data` lists.
        left: tells of weights that are not, also of a copy of the model; in the place
            of what the choice excludes.

    Raises:
        DataError: if what comes out of a layer is not finite.
        ModelError: if there is nothing to quantize.
    """
    rounded, made = clone(model), clone(model)
    quantize_weights(rounded, replace(choice, exclude=()), left)
    means = _mean_shifts(model, rounded, data)
    for before, after in zip(blocks(model), blocks(made), strict=True):
        if id(before) in means:
            _add(after.bias, means[id(before)])
    return made


def _add(bias: Any, by: np.ndarray) -> None:
    bias.assign(to_numpy(bias).astype(np.float64) + by)


def _mean_shifts(original: Any, quantized: Any, data: Any) -> dict[int, np.ndarray]:
    sums: dict[int, list[Any]] = {}
    rounded = {
        id(before): (before, after)
        for before, after in quantized_pairs(original, quantized)
        if has_channels(before) and before.bias is not None
    }

    def shifted(call: LayerCall) -> Any:
        layer, after = rounded[id(call.layer)]
        with _linear(layer), _linear(after):
            exact, other = call.run(), after(*call.args, **call.kwargs)
        shift = to_numpy(exact).astype(np.float64) - to_numpy(other)
        total, count = _summed(layer, shift)
        if not np.isfinite(total).all():
            raise not_finite(layer)
        seen = sums.setdefault(id(layer), [0.0, 0])
        seen[0], seen[1] = seen[0] + total, seen[1] + count
        return exact if layer.activation is None else layer.activation(exact)

    layers = [layer for layer, _ in rounded.values()]
    batches = input_batches(data, SAMPLES, BATCH_SIZE)
    observe(original, batches, layers, inputs=shifted)
    return {layer: total / count for layer, (total, count) in sums.items()}


@contextmanager
def _linear(layer: Any) -> Iterator[None]:
    """Return a scope in which a layer has no activation."""
    activation = layer.activation
    # Past Keras's own `__setattr__`, which would track an activation that is a layer.
    object.__setattr__(layer, "activation", keras.activations.linear)
    try:
        yield
    finally:
        object.__setattr__(layer, "activation", activation)


def _summed(layer: Any, values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return sums of the shape of a layer's bias, and of how many values each is."""
    shape = tuple(layer.bias.shape)
    if getattr(layer, "data_format", None) == "channels_first":
        values = np.moveaxis(values, 1, -1)
    outer = values.ndim - len(shape)
    axes = [
        axis for axis in range(values.ndim) if axis < outer or shape[axis - outer] == 1
    ]
    total = values.sum(tuple(axes)).reshape(shape)
    return total, values.size // total.size
