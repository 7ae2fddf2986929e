"""Removes heads and hidden units from models built from constructor arguments.

The new model has the same class, smaller width arguments and slices of the weights. The
layout of the units is found by trial. With the right one, the smaller model computes
the same as the original model with these units set to zero.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.channels.units import Layouts, Units
from kerasmem.compression.channels.verify import compared, difference
from kerasmem.compression.channels.widths import LAYOUTS, Layout
from kerasmem.errors import ModelError
from kerasmem.graph.arguments import Pair, made_with
from kerasmem.graph.values import to_numpy
from kerasmem.types import Dataset, Model

EXACT = 1e-5
"""Largest relative difference of outputs under the right layout."""


class Trial:
    """A model with fewer units, under a layout to be tested.

    Attributes:
        model: The smaller model.
        pairs: Weights of the original model and of the smaller model, in pairs.
        subset: Remaining weight entries.
    """

    def __init__(self, original: Model, units: Units, removed: np.ndarray) -> None:
        self._original, self._units = original, units
        self.subset = units.subset(removed, {})
        changes = units.changes(removed)
        self.model, self.pairs = made_with(original, changes, self._values)

    def fill(self, layouts: Layouts) -> None:
        """Sets the weights for other layouts. Building another model takes longer."""
        self.subset = self._units.subset(self.subset.removed, layouts)
        for weight, value in self._values(self.pairs):
            weight.assign(value)

    def error(self, data: Dataset) -> float:
        """Returns the largest relative output difference from the silenced original."""
        error, *_ = compared(self._original, self.model, self.subset, data)
        if math.isnan(error):
            raise ModelError(
                f"Cannot check whether the model {self._original.name!r} can lose "
                "heads and hidden units, because it does not run on random numbers. "
                "Next: pass samples as data=."
            )
        return error

    def _values(self, pairs: Sequence[Pair]) -> Iterator[tuple[Any, np.ndarray]]:
        for old, new in pairs:
            yield new, self.subset.gather(old, to_numpy(old))


def remove_units(
    model: Model, units: Units, removed: np.ndarray, data: Dataset
) -> Trial:
    """Builds a model without some units. The original model is not changed.

    Keeps units whose removal changes the output of other units. The reason is added to
    `units.groups.reasons`. Without data, the check uses random numbers.
    """
    trial = Trial(model, units, removed)
    if not removed.size or trial.error(data) <= EXACT:
        return trial
    layouts: dict[int, Layout] = {}
    for number in range(len(units.widths)):
        own = np.intersect1d(units.members(number), removed)
        layout = _layout(model, units, number, own, data) if own.size else None
        if layout is not None:
            layouts[number] = layout
    going = np.isin(removed, np.hstack([[], *map(units.members, layouts)]))
    if not going.all():
        trial = Trial(model, units, removed[going])
    trial.fill(layouts)
    return trial


def _layout(
    model: Model, units: Units, number: int, removed: np.ndarray, data: Dataset
) -> Layout | None:
    width, trial = units.widths[number], Trial(model, units, removed)
    errors: dict[Layout, float] = {}
    for layout in LAYOUTS:
        if layout.fits(width):
            trial.fill({number: layout})
            errors[layout] = trial.error(data)
            if errors[layout] <= EXACT:
                return layout
    best = min(errors, key=lambda layout: errors[layout])
    trial.fill({number: best})
    try:
        difference(model, trial.model, trial.subset, data)
    except ModelError:
        names = ", ".join(place[-1] for place in width.values)
        why = (
            f"{names}: removing a unit changes other units by {errors[best]:.1e} of "
            "the largest output"
        )
        units.groups.reasons.update(dict.fromkeys(removed.tolist(), why))
        return None
    return best
