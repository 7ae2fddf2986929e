"""Quantizing weights, with what data can tell about it and mend.

What quantized layers lose in what they make, each given what the float one gets; and
bias correction, which takes off what rounding adds to a layer's outputs on average.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019; the empirical form, on data.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.backends.patching import LayerCall
from kerasmem.compression.quantize.apply import (
    Exclude,
    WeightPlan,
    quantize_weights,
    store,
)
from kerasmem.compression.quantize.kernels import has_channels
from kerasmem.compression.quantize.on_data.output_error import (
    BATCH_SIZE,
    SAMPLES,
    arrays_of,
    twin_layers,
    with_output_error,
)
from kerasmem.compression.quantize.on_data.passes import batch_within
from kerasmem.compression.quantize.on_data.rounding import (
    ROUNDED,
    round_on_data,
    what_is_done,
)
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.errors import ConfigError
from kerasmem.files.data import check_data, input_batches
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import weights
from kerasmem.graph.observe import observe
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Layer, Model

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


def store_and_repair(
    model: Model, config: "Quantize", plan: WeightPlan, data: Dataset = None
) -> list[WeightChange]:
    """Store the weights of `model` in fewer bits as a plan says, in place.

    Args:
        model: a built model.
        config: the scheme, or what several share.
        plan: of the weights.
        data: samples in any form that `kerasmem.files.data` lists, to correct biases
            on and to measure what layers lose in what they make; None to do neither.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ConfigError: if biases are to be corrected, or weights to be rounded
            on samples, without data.
        DataError: if the data does not fit the model, or a layer makes something of it
            that is not finite.
        ModelError: if a weight is not finite, or none can be rounded on samples.
    """
    if data is None:
        _check_needs_no_data(config)
        return store(model, plan)
    check_data(model, data)
    original, ratios = clone(model), dict[int, float | None]()
    if config.takes_samples:
        ratios, plan = round_on_data((original, model), config, plan, data)
    changes = store(model, plan)
    all_weights, corrections = list(weights(original)), dict[int, str]()
    if config.bias_correction:
        for before, after, shift in _mean_shifts(original, model, data):
            _add(after.bias, shift)
            largest = np.abs(shift).max()
            corrections[id(before.bias)] = f"corrected by up to {largest:.2g}"
    for place, weight in enumerate(all_weights):
        variable, change = id(weight.variable), changes[place]
        if variable in ratios:
            rounding = ROUNDED.get(config.rounding)
            detail = ", ".join(filter(None, (change.detail, rounding)))
            ratio = ratios[variable]
            changes[place] = replace(change, detail=detail, sqnr_db=ratio)
        elif variable in corrections:
            detail = corrections[variable]
            changes[place] = replace(change, changed=True, detail=detail)
    return with_output_error(changes, all_weights, original, model, data)


def _check_needs_no_data(config: "Quantize") -> None:
    if config.bias_correction:
        raise ConfigError(
            "Biases are corrected on samples: give data=. Received: "
            "bias_correction=True, data=None."
        )
    if config.takes_samples:
        raise ConfigError(
            f"Weights are {what_is_done(config)} on samples: give data=x (--data on "
            f"the command line). Received: rounding={config.rounding!r}, "
            f"scales={config.scales!r}, data=None."
        )


def correct_biases(
    model: Model, config: "Quantize", data: Dataset, exclude: Exclude
) -> None:
    """Correct in place the biases of a float model whose weights are to be rounded.

    Args:
        model: a built model.
        config: how its weights are to be rounded.
        data: samples in any form that `kerasmem.files.data` lists.
        exclude: tells of weights that are not, also of a copy of the model; in the
            place of what the config excludes.

    Raises:
        DataError: if what comes out of a layer is not finite.
        ModelError: if there is nothing to quantize.
    """
    rounded_model = clone(model)
    quantize_weights(rounded_model, replace(config, exclude=()), exclude)
    for layer, _, shift in _mean_shifts(model, rounded_model, data):
        _add(layer.bias, shift)


def _add(bias: Any, shift: np.ndarray) -> None:
    bias.assign(to_numpy(bias).astype(np.float64) + shift)


def _mean_shifts(
    original: Model, quantized: Model, data: Dataset
) -> list[tuple[Any, Any, np.ndarray]]:
    """Return layers, their twins, and what to add to the bias of either.

    It is what the float layer makes before its activation less what the quantized one
    makes of the same inputs, as the mean over samples and places.

    Args:
        original: a float model.
        quantized: a copy of it with quantized weights.
        data: samples; the first 128 are taken, batch by batch.

    Raises:
        DataError: if what comes out of a layer is not finite.
    """
    twins = {
        id(before): (before, after)
        for before, after in twin_layers(original, quantized)
        if has_channels(before)
        and before.bias is not None
        and any(isinstance(v, QuantizedVariable) for v in vars(after).values())
    }
    sums: dict[int, list[Any]] = {layer: [0.0, 0] for layer in twins}

    def shifted(call: LayerCall) -> Any:
        layer, twin = twins[id(call.layer)]
        with _linear(layer), _linear(twin):
            exact, twin_outputs = call.run(), twin(*call.args, **call.kwargs)
        both = arrays_of(layer, [exact, twin_outputs])
        if both is not None:
            exact_part, rounded_part = (x.astype(np.float64) for x in both)
            total, count = _summed(layer, exact_part - rounded_part)
            layer_sums = sums[id(layer)]
            layer_sums[0], layer_sums[1] = layer_sums[0] + total, layer_sums[1] + count
        return exact if layer.activation is None else layer.activation(exact)

    layers = [layer for layer, _ in twins.values()]
    batches = input_batches(data, SAMPLES, batch_within(original, data, BATCH_SIZE))
    observe(original, batches, layers, inputs=shifted)
    return [
        (*twins[layer], total / count)
        for layer, (total, count) in sums.items()
        if count
    ]


@contextmanager
def _linear(layer: Layer) -> Iterator[None]:
    activation = layer.activation
    layer.activation = None
    try:
        yield
    finally:
        layer.activation = activation


def _summed(layer: Layer, values: np.ndarray) -> tuple[np.ndarray, int]:
    shape = tuple(layer.bias.shape)
    if getattr(layer, "data_format", None) == "channels_first":
        values = np.moveaxis(values, 1, -1)
    outer = values.ndim - len(shape)
    axes = [
        axis for axis in range(values.ndim) if axis < outer or shape[axis - outer] == 1
    ]
    total = values.sum(tuple(axes)).reshape(shape)
    return total, values.size // total.size
