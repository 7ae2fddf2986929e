"""The steps of weights: those that were given, or learned while training goes on."""

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from kerasmem.compression.quantize.aware.steps import LEAST, round_by_steps
from kerasmem.compression.quantize.aware.trained_beside import TrainedBeside
from kerasmem.compression.quantize.layer import Place
from kerasmem.compression.quantize.math import LIMIT, finite
from kerasmem.graph.layers import Weight
from kerasmem.graph.values import to_numpy

_SMALLEST = 1e-30
"""A scale below that is of zeros, or as good as that."""


@dataclass(frozen=True, eq=False)
class WeightSteps:
    """The steps between the values that a weight may take.

    Args:
        begin: the steps as they were at first, float32, in the shape of the scales that
            the weight is stored with.
        limit: the highest code.
        entries: number of entries of the weight that share a step.
        variable: the steps as shares of these, flat; None if they stay as they are.
        caught: what is to be given its gradient, if anything.
    """

    begin: np.ndarray
    limit: int
    entries: float
    variable: Any = None
    caught: Any = None

    def rounded(self, x: Any) -> Any:
        """Return a float32 weight, laid out as it is stored, rounded."""
        begin = keras.ops.convert_to_tensor(self.begin)
        relative = keras.ops.ones_like(begin)
        if self.variable is not None:
            relative = keras.ops.reshape(self.variable.value, self.begin.shape)
        ends = (-self.limit, self.limit)
        return round_by_steps(x, relative, begin, *ends, self.entries, self.caught)

    def read(self) -> np.ndarray:
        """Return the steps as they are by now, flat; call it between epochs only."""
        if self.variable is None:
            return self.begin.reshape(-1)
        relative = np.maximum(to_numpy(self.variable), np.float32(LEAST))
        return relative * self.begin.reshape(-1)


def weight_steps(
    weight: Weight, place: Place, beside: TrainedBeside | None
) -> WeightSteps | None:
    """Return the steps of a weight, None for those of its largest entries.

    Learned ones begin with the scales that the weight is stored with. A weight that is
    not trained has none, nor one of zeros, which has no scale yet.

    Args:
        weight: it.
        place: how it is stored, symmetric where steps are learned.
        beside: what trains them; None to leave those that are given as they are.

    Raises:
        ModelError: if the weight holds NaN or infinity.
    """
    trainer = beside if weight.variable.trainable else None
    if place.scales is None and trainer is None:
        return None
    begin = place.scales
    if begin is None:
        begin = _scales(place, finite(to_numpy(weight.variable), weight.path))
    if begin is None:
        return None
    limit = LIMIT >> (8 - place.coding.bits)
    fixed = WeightSteps(begin, limit, weight.size / begin.size)
    if trainer is None:
        return fixed
    name = f"kerasmem_{weight.variable.name}_scale"
    variable = trainer.add(np.ones(begin.size, "float32"), name)
    return replace(fixed, variable=variable, caught=trainer.catching(variable))


def _scales(place: Place, values: np.ndarray) -> np.ndarray | None:
    """Return the scales that values are stored with; None if all are zero.

    What is all zero beside others has no scale of its own: it gets the mean of theirs.
    """
    rows = place.coding.rows(values.shape)
    laid_out = values if rows is None else rows.store(values, np)
    scales = place.coding.encode(values).scales
    shared = tuple(axis for axis, length in enumerate(scales.shape) if length == 1)
    used = np.abs(laid_out).max(axis=shared, keepdims=True) > _SMALLEST
    if not used.any():
        return None
    return np.where(used, scales, scales[used].mean()).astype("float32")
