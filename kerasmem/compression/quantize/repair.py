"""Quantizing weights, with what data can tell about it and mend.

What quantized layers lose in what they make, each given what the float one gets; and
bias correction, which takes off what rounding adds to a layer's outputs on average.

Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
weight equalization and bias correction", 2019; the empirical form, on data.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem.backends.patching import LayerCall, observing
from kerasmem.compression.account import decibels
from kerasmem.compression.quantize.apply import (
    NO_SCALES,
    Exclude,
    Scales,
    excludes_nothing,
    quantize_weights,
)
from kerasmem.compression.quantize.config import NEAREST
from kerasmem.compression.quantize.kernels import has_channels
from kerasmem.compression.quantize.on_data import ROUNDED, round_on_data
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.errors import ConfigError
from kerasmem.files.data import check_data, input_batches
from kerasmem.graph.clone import clone
from kerasmem.graph.layers import Weight, blocks, sublayers, weights
from kerasmem.graph.observe import observe
from kerasmem.graph.values import not_finite, to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize

_SAMPLES, _BATCH_SIZE = 128, 32
"""Most samples to look at, and how many go through the model at a time."""


def quantize_and_repair(
    model: Any,
    config: "Quantize",
    data: Any = None,
    exclude: Exclude = excludes_nothing,
    scales: Scales = NO_SCALES,
) -> list[WeightChange]:
    """Store the weights of `model` in fewer bits, in place.

    Args:
        model: a built model.
        config: the scheme.
        data: samples in any form that `kerasmem.files.data` lists, to correct biases
            on and to measure what layers lose in what they make; None to do neither.
        exclude: tells of more weights to leave alone than the config does.
        scales: those that were learned.

    Returns:
        One change per weight of the model, changed or left alone and why.

    Raises:
        ConfigError: if biases are to be corrected, or weights to be rounded
            on samples, without data.
        DataError: if the data does not fit the model, or a layer makes something of it
            that is not finite.
        ModelError: if there is nothing to quantize.
    """
    if data is None:
        _check_needs_no_data(config)
        return quantize_weights(model, config, exclude, scales)
    check_data(model, data)
    original, adapted = clone(model), dict[int, float | None]()
    if config.rounding != NEAREST:
        adapted, own = round_on_data(original, model, config, exclude, data)
        scales = {**scales, **own}
    changes = quantize_weights(model, config, exclude, scales)
    all_weights, corrections = list(weights(original)), dict[int, str]()
    if config.bias_correction:
        for before, after, shift in _mean_shifts(original, model, data):
            _add(after.bias, shift)
            largest = np.abs(shift).max()
            corrections[id(before.bias)] = f"corrected by up to {largest:.2g}"
    for place, weight in enumerate(all_weights):
        variable, change = id(weight.variable), changes[place]
        if variable in adapted:
            detail = f"{change.detail}, {ROUNDED[config.rounding]}"
            ratio = adapted[variable]
            changes[place] = replace(change, detail=detail, sqnr_db=ratio)
        elif variable in corrections:
            detail = corrections[variable]
            changes[place] = replace(change, changed=True, detail=detail)
    return _with_output_error(changes, all_weights, original, model, data)


def _check_needs_no_data(config: "Quantize") -> None:
    if config.bias_correction:
        raise ConfigError(
            "Biases are corrected on samples: give data=. Received: "
            "bias_correction=True, data=None."
        )
    if config.rounding != NEAREST:
        raise ConfigError(
            f"Weights are {ROUNDED[config.rounding]} on samples: give data=x (--data "
            "on the command line). Received: "
            f"rounding={config.rounding!r}, data=None."
        )


def correct_biases(model: Any, config: "Quantize", data: Any, exclude: Exclude) -> None:
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
    rounded = clone(model)
    quantize_weights(rounded, replace(config, exclude=()), exclude)
    for layer, _, shift in _mean_shifts(model, rounded, data):
        _add(layer.bias, shift)


def _add(bias: Any, shift: np.ndarray) -> None:
    bias.assign(to_numpy(bias).astype(np.float64) + shift)


def _twins(original: Any, quantized: Any) -> list[tuple[Any, Any]]:
    """Return every layer of a model, at any depth, with that of its quantized copy."""
    return [
        twins
        for pair in zip(blocks(original), blocks(quantized), strict=True)
        for twins in zip(*map(sublayers, pair), strict=True)
    ]


def _mean_shifts(
    original: Any, quantized: Any, data: Any
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
        for before, after in _twins(original, quantized)
        if has_channels(before)
        and before.bias is not None
        and any(isinstance(v, QuantizedVariable) for v in vars(after).values())
    }
    sums: dict[int, list[Any]] = {layer: [0.0, 0] for layer in twins}

    def shifted(call: LayerCall) -> Any:
        layer, twin = twins[id(call.layer)]
        with _linear(layer), _linear(twin):
            exact, rounded = call.run(), twin(*call.args, **call.kwargs)
        both = _arrays(layer, [exact, rounded])
        if both is not None:
            total, count = _summed(layer, both[0] - both[1])
            seen = sums[id(layer)]
            seen[0], seen[1] = seen[0] + total, seen[1] + count
        return exact if layer.activation is None else layer.activation(exact)

    layers = [layer for layer, _ in twins.values()]
    batches = input_batches(data, _SAMPLES, _BATCH_SIZE)
    observe(original, batches, layers, inputs=shifted)
    return [
        (*twins[layer], total / count)
        for layer, (total, count) in sums.items()
        if count
    ]


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


def _with_output_error(
    changes: list[WeightChange],
    all_weights: Sequence[Weight],
    original: Any,
    quantized: Any,
    data: Any,
) -> list[WeightChange]:
    """Return changes that tell what quantized layers lose in what they make.

    Each layer is given what the float model gives it, and layers within it that are
    measured themselves are float, so that the figure tells of this layer alone.

    Args:
        changes: one for every weight of `original`, in order.
        all_weights: these weights.
        original: a model.
        quantized: a copy of it with quantized weights.
        data: samples; the first 128 are taken, batch by batch.

    Raises:
        DataError: if what comes out of a layer is not finite.
    """
    pairs = list(zip(all_weights, changes, strict=True))
    homes = _homes([weight for weight, change in pairs if change.changed])
    losses = _Losses(original, quantized, list(homes.values()))
    batches = input_batches(data, _SAMPLES, _BATCH_SIZE)
    layers = [layer for each in homes.values() for layer in each]
    observe(original, batches, layers, outputs=losses.see)
    return [
        replace(change, output_sqnr_db=losses.ratio(homes[id(weight.variable)]))
        if change.changed
        else change
        for weight, change in pairs
    ]


def _homes(changed: Sequence[Weight]) -> dict[int, list[Any]]:
    """Return the layers whose outputs tell of a weight, by its id, the smallest first.

    These are its own layer and those around it, but no model around it: that one tells
    of all its layers. A cell, called at every step, is a part of its loop.
    """
    inner = cache(sublayers)
    ids = cache(lambda layer: set(map(id, inner(layer))))
    found = {}
    for weight in changed:
        around = [x for x in inner(weight.block) if id(weight.owner) in ids(x)]
        around.sort(key=lambda x: len(inner(x)))
        loops = [n for n, x in enumerate(around) if isinstance(x, keras.layers.RNN)]
        found[id(weight.variable)] = [
            x
            for x in around[max(loops, default=0) :]
            if x is weight.owner or not isinstance(x, keras.Model)
        ]
    return found


class _Losses:
    """What layers lose in what they make, added up over their calls.

    Args:
        original: a model.
        quantized: a copy of it with quantized weights.
        homes: for every weight the layers that tell of it, the smallest first.
    """

    def __init__(
        self, original: Any, quantized: Any, homes: Sequence[Sequence[Any]]
    ) -> None:
        self._homes = homes
        self._twins = {id(b): after for b, after in _twins(original, quantized)}
        self._sums: dict[int, dict[int, np.ndarray]] = {}
        self._comparing = False

    def see(self, call: LayerCall) -> None:
        """Add what is lost in a call, if a smaller layer does not tell it."""
        layer = call.layer
        # Layers within this one were seen before, if they are called at all.
        if self._comparing or not any(
            self._first(h, layer) is layer for h in self._homes
        ):
            return
        exact = _arrays(layer, call.outputs)
        if exact is None:
            return
        self._comparing = True
        with self._alone(layer):
            rounded = self._twins[id(layer)](*call.args, **call.kwargs)
        self._comparing = False
        sums = self._sums.setdefault(id(layer), defaultdict(lambda: np.zeros(2)))
        pairs = zip(exact, _arrays(layer, rounded) or (), strict=True)
        for place, (want, have) in enumerate(pairs):
            sums[place] += np.square(want).sum(), np.square(want - have).sum()

    def ratio(self, homes: Sequence[Any]) -> float | None:
        """Return the ratio in dB of the smallest layer that was seen, None without.

        It is that of the worst output: another may be large, such as a filled mask.
        """
        sums = self._sums.get(id(self._first(homes)), {})
        ratios = (decibels(*both.tolist()) for both in sums.values())
        return min((ratio for ratio in ratios if ratio is not None), default=None)

    def _first(self, homes: Sequence[Any], other: Any = None) -> Any:
        """Return the first layer that was seen or is the other one, None without."""
        return next((x for x in homes if x is other or id(x) in self._sums), None)

    def _alone(self, layer: Any) -> AbstractContextManager[None]:
        """Return a scope in which what was seen within a quantized layer is float."""
        seen = [x for x in sublayers(layer)[1:] if id(x) in self._sums]
        floats = {id(self._twins[id(x)]): x for x in seen}
        return observing(
            [self._twins[id(x)] for x in seen],
            inputs=lambda call: floats[id(call.layer)](*call.args, **call.kwargs),
        )


def _arrays(layer: Any, outputs: Any) -> list[np.ndarray] | None:
    """Return tensors as arrays, None for symbols, as a traced loop hands them on."""
    try:
        tensors = [to_numpy(y) for y in keras.tree.flatten(outputs) if y is not None]
    except Exception:  # noqa: BLE001 - each framework raises another one for symbols
        return None
    arrays = [array.astype(np.float64) for array in tensors]
    if not all(np.isfinite(array).all() for array in arrays):
        raise not_finite(layer)
    return arrays
