"""Weight quantization with data: output errors and bias correction.

The output error of a quantized layer is measured on the inputs of the float layer. Bias
correction removes the mean output error that rounding causes.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019 (empirical bias correction).
"""

import warnings
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
from kerasmem.compression.quantize.config import NEAREST
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
)
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.errors import ConfigError, KerasMemWarning
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
    """Quantize the weights of `model` in place as planned. Return their changes.

    Samples in `data` are used for rounding, bias correction and output errors. Without
    data, none of these is done.

    Raises:
        ConfigError: If bias correction or rounding needs data and there is none.
        DataError: If the data does not fit the model, or the output of a layer is not
            finite.
        ModelError: If a weight is not finite, or no weight can be rounded on samples.
    """
    if data is None:
        _check_needs_no_data(config)
        return store(model, plan)
    check_data(model, data)
    # Neither of the models is trained here.
    original, ratios = clone(model, shares=True), dict[int, float | None]()
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
            "Bias correction needs samples. Received: bias_correction=True, "
            "data=None. Next: pass data=x (--data on the command line)."
        )
    if config.takes_samples:
        name = "scales" if config.rounding == NEAREST else "rounding"
        raise ConfigError(
            f"{name}={getattr(config, name)!r} needs samples. Received: data=None. "
            "Next: pass data=x (--data on the command line)."
        )


def correct_biases(
    model: Model, config: "Quantize", data: Dataset, exclude: Exclude
) -> None:
    """Correct the biases of a float model in place before its weights are rounded.

    `exclude` replaces the exclusions in `config`. It also receives weights of a copy.

    Raises:
        DataError: If the output of a layer is not finite.
        ModelError: If there is nothing to quantize.
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
    """Return layers, their twins, and the correction of their biases.

    The correction is the mean difference between float and quantized layer on the same
    inputs, without activation. The first 128 samples are used.
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

    if not twins:
        warnings.warn(
            "bias_correction=True has no effect: no quantized layer has a bias that "
            "can be corrected. Next: leave it out, or fold BatchNormalization first, "
            "which adds biases.",
            KerasMemWarning,
            stacklevel=4,
        )
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
