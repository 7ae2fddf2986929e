"""What quantized layers lose in what they make, each given what the float one gets."""

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
"""Most samples to look at, and how many go through the model at a time at most."""

_ENOUGH = 1 << 18
"""So many numbers that a layer makes tell how large its error is."""


def with_output_error(
    changes: list[WeightChange],
    all_weights: Sequence[Weight],
    original: Model,
    quantized: Model,
    data: Dataset,
) -> list[WeightChange]:
    """Return changes that tell what quantized layers lose in what they make.

    Each layer is given what the float model gives it, and layers within it that are
    measured themselves are float, so that the figure tells of this layer alone.

    Args:
        changes: one for every weight of `original`, in order.
        all_weights: these weights.
        original: a model.
        quantized: a copy of it with quantized weights.
        data: samples; of the first 128 as many are taken as it takes, batch by batch.

    Raises:
        DataError: if what comes out of a layer is not finite.
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
    """Return the layers whose outputs tell of a weight, by its id, the smallest first.

    These are its own layer and those around it, but no model around it: that one tells
    of all its layers. A cell, called at every step, is a part of its loop.
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
    """What layers lose in what they make, added up over their calls.

    Args:
        original: a model.
        quantized: a copy of it with quantized weights.
        homes: for every weight the layers that tell of it, the smallest first.
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
        """Return whether more has to be seen of some layer that tells of a weight."""
        first = [self._first(each) for each in self._homes]
        return not first or any(self._counts[id(x)] < _ENOUGH for x in first)

    def see(self, call: LayerCall) -> None:
        """Add what is lost in a call, if a smaller layer does not tell it."""
        layer = call.layer
        if self._comparing or self._counts[id(layer)] >= _ENOUGH:
            return
        # Layers within this one were seen before, if they are called at all.
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
        """Return the ratio in dB of the smallest layer that was seen, None without.

        It is that of the worst output: another may be large, such as a filled mask.
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
    """Return every layer of a model, at any depth, with that of its quantized copy."""
    return [
        twins
        for pair in zip(blocks(original), blocks(quantized), strict=True)
        for twins in zip(*map(sublayers, pair), strict=True)
    ]


def arrays_of(layer: Layer, outputs: Tensors) -> list[np.ndarray] | None:
    """Return tensors as arrays, None for symbols, as a traced loop hands them on."""
    try:
        arrays = [to_numpy(y) for y in keras.tree.flatten(outputs) if y is not None]
    except Exception:  # noqa: BLE001 - each framework raises another one for symbols
        return None
    if not all(np.isfinite(array).all() for array in arrays):
        raise not_finite(layer)
    return arrays
