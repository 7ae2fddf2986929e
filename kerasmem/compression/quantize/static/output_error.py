"""How far integer layers are from the float ones, on data."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.compression.account import decibels
from kerasmem.compression.quantize.activations.calibrate import flat_batches
from kerasmem.compression.quantize.config import Calibration
from kerasmem.compression.quantize.static.plan import Plan
from kerasmem.compression.quantize.static.product import IntegerProduct
from kerasmem.graph.layers import listed_graph
from kerasmem.graph.observe import LayerCall, observing
from kerasmem.graph.values import to_numpy

SAMPLES = Calibration(samples=128)
"""What to look at, and how many at a time."""


class Pair:
    """A float model and the one of integers that was made of it.

    Args:
        model: the float model.
        plan: what became of its calls.
        layers: the new layers by the names of calls.
        made: the new model.
    """

    def __init__(
        self, model: Any, plan: Plan, layers: Mapping[str, Any], made: Any
    ) -> None:
        self._model, self._plan, self._made = model, plan, made
        self._layers = {
            name: layer
            for name, layer in layers.items()
            if isinstance(layer, IntegerProduct)
        }
        self._sums = {name: np.zeros(2) for name in self._layers}

    def output_sqnr_db(self, data: Any) -> dict[int, float | None]:
        """Return what layers make of samples beside what they lose, by the layer's id.

        Both models are given the samples, so that the figure, a ratio in dB, has in it
        what the layers before lost.

        Args:
            data: samples in any form that `kerasmem.files.data` lists; the first 128
                are taken, batch by batch.
        """
        with current().inference():
            for batch in flat_batches(self._model, data, SAMPLES):
                self._compare([keras.ops.convert_to_tensor(x) for x in batch])
        sums: dict[int, np.ndarray] = {}
        for call in self._plan.calls.calls:
            if call.name in self._sums:
                before = sums.get(id(call.layer), np.zeros(2))
                sums[id(call.layer)] = before + self._sums[call.name]
        return {layer: decibels(*both.tolist()) for layer, both in sums.items()}

    def _compare(self, inputs: list[Any]) -> None:
        codes: dict[str, np.ndarray] = {}

        def keep(call: LayerCall) -> None:
            codes[own[id(call.layer)]] = to_numpy(call.outputs)

        own = {id(layer): name for name, layer in self._layers.items()}
        with observing(self._layers.values(), outputs=keep):
            self._made(
                keras.tree.pack_sequence_as(listed_graph(self._made).input, inputs)
            )
        names = self._plan.calls.names
        wanted = {names[self._plan.steps[name].output]: name for name in codes}

        def see(tensor: str, value: Any) -> None:
            if tensor in wanted:
                name = wanted[tensor]
                exact = to_numpy(value).astype(np.float64)
                of = self._layers[name].output_codes
                given = codes.pop(name).astype(np.float64)
                if of is not None:
                    given = of.scale * (given - of.zero_point)
                apart = exact - given
                self._sums[name] += np.square(exact).sum(), np.square(apart).sum()

        self._plan.calls.run(inputs, see)
