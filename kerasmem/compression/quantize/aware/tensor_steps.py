"""The steps of activations, learned from where the first batch has put them."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.aware.quantizers import Ends
from kerasmem.compression.quantize.aware.rounding import nudged
from kerasmem.compression.quantize.aware.steps import LEAST, round_by_steps
from kerasmem.compression.quantize.aware.trained_beside import TrainedBeside
from kerasmem.graph.values import to_numpy

_FIRST, _LAST = 0, 255


class TensorSteps:
    """A step in each of several places, relative to that of the range there.

    The code of zero stays what it is by the range.

    Args:
        names: of the places.
        beside: what trains the steps.
    """

    def __init__(self, names: Iterable[str], beside: TrainedBeside) -> None:
        one = np.ones((), "float32")
        called = [f"kerasmem_{name}_scale".replace("/", "_") for name in names]
        self._variables = [beside.add(one, name) for name in called]
        self._caught = [beside.catching(variable) for variable in self._variables]

    def rounded(self, place: int, x: Any, ends: Ends) -> Any:
        """Return a tensor rounded to codes times the step of a place.

        Args:
            place: number of the place.
            x: of any float type; the arithmetic is float32.
            ends: of the range that the step is relative to.
        """
        ops = keras.ops
        start, stop, step = nudged(*ends, _FIRST, _LAST)
        rounded = round_by_steps(
            ops.cast(x, "float32"),
            ops.convert_to_tensor(self._variables[place].value),
            step,
            ops.round(start / step),
            ops.round(stop / step),
            _entries(x),
            self._caught[place],
        )
        return ops.cast(rounded, x.dtype)

    def scaled(self, ends: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
        """Return ranges as wide as the steps make them; call it between epochs only."""
        factors = [max(float(to_numpy(v)), LEAST) for v in self._variables]
        pairs = zip(ends, factors, strict=True)
        return [(low * factor, high * factor) for (low, high), factor in pairs]


def _entries(x: Any) -> Any:
    """Return the number of entries of one sample."""
    entries = 1
    for length in keras.ops.shape(x)[1:]:
        entries = entries * length
    return keras.ops.cast(entries, "float32")
