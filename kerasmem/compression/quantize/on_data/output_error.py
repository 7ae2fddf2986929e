"""Output errors of quantized layers on the inputs of the float layers."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from itertools import takewhile
from typing import Any

import keras
import numpy as np

from kerasmem.backends.patching import LayerCall, observing
from kerasmem.compression.account import decibels
from kerasmem.compression.quantize.on_data.passes import batch_within
from kerasmem.files.data import input_batches
from kerasmem.graph.layers import Weight, blocks, sublayers
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
