"""Weight quantization with data: output errors and bias correction.

The output error of a quantized layer is measured on the inputs of the float layer. Bias
correction removes the mean output error that rounding causes.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019 (empirical bias correction).
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from itertools import takewhile
from typing import Any

import keras
import numpy as np

from kerasmem.backends.patching import LayerCall, observing
from kerasmem.compression.account import decibels
from kerasmem.compression.quantize.apply import (
    Exclude,
    WeightPlan,
    quantize_weights,
    store,
)
from kerasmem.compression.quantize.config import NEAREST, Quantize
from kerasmem.compression.quantize.kernels import has_channels
from kerasmem.compression.quantize.on_data.passes import batch_within
from kerasmem.compression.quantize.on_data.rounding import (
    ROUNDED,
    round_on_data,
)
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.files.data import check_data, input_batches
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import Weight, blocks, sublayers, weights
from kerasmem.graph.observe import observe
from kerasmem.graph.values import not_finite, to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Layer, Model, Tensors

SAMPLES, BATCH_SIZE = 128, 32
"""Maximum number of samples, and maximum batch size."""

_ENOUGH = 1 << 18
"""Number of output values that suffices to measure the error of a layer."""


def with_output_error(
    changes: list[WeightChange],
    all_weights: Sequence[Weight],
    original: Model,
    quantized: Model,
    data: Dataset,
) -> list[WeightChange]:
    """Return the changes with the output errors of quantized layers.

    Each layer runs on the inputs of the float layer. Inner layers that are measured
    separately stay float, so the error is caused by this layer only. At most 128
    samples are used.

    Raises:
        DataError: If the output of a layer is not finite.
    """
    pairs = list(zip(all_weights, changes, strict=True))
    homes = _homes([weight for weight, change in pairs if change.changed])
    losses = _Losses(original, quantized, list(homes.values()))
    size = batch_within(original, data, BATCH_SIZE)
    batches = takewhile(losses.lack, input_batches(data, SAMPLES, size))
    layers = [layer for each in homes.values() for layer in each]
    observe(original, batches, layers, outputs=losses.see)
    return [
        replace(change, output_sqnr_db=losses.ratio(homes[id(weight.variable)]))
        if change.changed
        else change
        for weight, change in pairs
    ]


def _homes(changed: Sequence[Weight]) -> dict[int, list[Any]]:
    """Return the layers to measure for each weight, by its id, smallest first.

    These are the owner of the weight and its outer layers, but no outer models. A
    recurrent cell is measured with its loop, because it is called at every step.
    """
    inner = cache(sublayers)
    ids = cache(lambda layer: set(map(id, inner(layer))))
    homes = {}
    for weight in changed:
        around = [x for x in inner(weight.block) if id(weight.owner) in ids(x)]
        around.sort(key=lambda x: len(inner(x)))
        loops = [n for n, x in enumerate(around) if isinstance(x, keras.layers.RNN)]
        homes[id(weight.variable)] = [
            x
            for x in around[max(loops, default=0) :]
            if x is weight.owner or not isinstance(x, keras.Model)
        ]
    return homes


class _Losses:
    """Output errors of layers, accumulated over calls.

    `homes` contains the layers to measure for each weight, smallest first.
    """

    def __init__(
        self, original: Model, quantized: Model, homes: Sequence[Sequence[Any]]
    ) -> None:
        self._homes = homes
        self._twins = {id(b): after for b, after in twin_layers(original, quantized)}
        self._sums: dict[int, dict[int, np.ndarray]] = {}
        self._counts: Counter[int] = Counter()
        self._comparing = False

    def lack(self, _: Any) -> bool:
        """Return whether a layer needs more samples."""
        first = [self._first(each) for each in self._homes]
        return not first or any(self._counts[id(x)] < _ENOUGH for x in first)

    def see(self, call: LayerCall) -> None:
        """Add the error of a call, unless a smaller layer is measured."""
        layer = call.layer
        if self._comparing or self._counts[id(layer)] >= _ENOUGH:
            return
        # Inner layers are measured first, if they are called at all.
        if not any(self._first(h, layer) is layer for h in self._homes):
            return
        exact = arrays_of(layer, call.outputs)
        if exact is None:
            return
        self._comparing = True
        with self._alone(layer):
            outputs = self._twins[id(layer)](*call.args, **call.kwargs)
        self._comparing = False
        sums = self._sums.setdefault(id(layer), defaultdict(lambda: np.zeros(2)))
        pairs = zip(exact, arrays_of(layer, outputs) or (), strict=True)
        for place, each in enumerate(pairs):
            self._counts[id(layer)] += each[0].size
            for want, have in zip(*map(np.atleast_1d, each), strict=True):
                exactly = want.astype(np.float64)
                noise = np.square(have - exactly).sum()
                sums[place] += np.square(exactly).sum(), noise

    def ratio(self, homes: Sequence[Any]) -> float | None:
        """Return the ratio of the smallest measured layer in dB, or None.

        For several outputs, it is the worst ratio. Another output, such as a filled
        mask, may be large.
        """
        sums = self._sums.get(id(self._first(homes)), {})
        ratios = (decibels(*both.tolist()) for both in sums.values())
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    def _first(self, homes: Sequence[Any], other: Any = None) -> Any:
        return next((x for x in homes if x is other or id(x) in self._sums), None)

    def _alone(self, layer: Layer) -> AbstractContextManager[None]:
        inner_layers = [x for x in sublayers(layer)[1:] if id(x) in self._sums]
        floats = {id(self._twins[id(x)]): x for x in inner_layers}
        return observing(
            [self._twins[id(x)] for x in inner_layers],
            inputs=lambda call: floats[id(call.layer)](*call.args, **call.kwargs),
        )


def twin_layers(original: Model, quantized: Model) -> list[tuple[Any, Any]]:
    """Return pairs of a layer and its quantized copy, at any depth."""
    return [
        twins
        for pair in zip(blocks(original), blocks(quantized), strict=True)
        for twins in zip(*map(sublayers, pair), strict=True)
    ]


def arrays_of(layer: Layer, outputs: Tensors) -> list[np.ndarray] | None:
    """Return tensors as arrays. None for symbolic tensors of a traced loop."""
    try:
        arrays = [to_numpy(y) for y in keras.tree.flatten(outputs) if y is not None]
    except Exception:  # noqa: BLE001 - symbolic tensors raise backend-specific errors
        return None
    if not all(np.isfinite(array).all() for array in arrays):
        raise not_finite(layer)
    return arrays


def store_and_repair(
    model: Model, config: Quantize, plan: WeightPlan, data: Dataset = None
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


def _check_needs_no_data(config: Quantize) -> None:
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
    model: Model, config: Quantize, data: Dataset, exclude: Exclude
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
