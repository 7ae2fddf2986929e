"""A model of a class that builds itself, with fewer heads and hidden units.

What is made is of the same class, with other arguments and slices of the weights. How
units lie is found out by trying: the right layout is the one under which the smaller
model computes what the original does without them.
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
"""Largest difference of outputs, relative to the largest, under the right layout."""


class Trial:
    """A model with fewer units, which may turn out to be the wrong ones.

    Args:
        original: the model that it is made of.
        units: its units.
        removed: the classes that go.

    Attributes:
        model: the smaller model.
        pairs: its weights, behind those of the original.
        subset: what stays of the weights.
    """

    def __init__(self, original: Model, units: Units, removed: np.ndarray) -> None:
        self._original, self._units = original, units
        self.subset = units.subset(removed, {})
        changes = units.changes(removed)
        self.model, self.pairs = made_with(original, changes, self._values)

    def fill(self, layouts: Layouts) -> None:
        """Let the units go that these layouts mean: to make a model takes longer."""
        self.subset = self._units.subset(self.subset.removed, layouts)
        for weight, value in self._values(self.pairs):
            weight.assign(value)

    def error(self, data: Dataset) -> float:
        """Return how far it is from the original with the other units silenced.

        Raises:
            ModelError: if the original cannot be run.
        """
        error, *_ = compared(self._original, self.model, self.subset, data)
        if math.isnan(error):
            raise ModelError(
                f"Whether the model {self._original.name!r} can lose heads and hidden "
                "units cannot be checked: it does not run on random numbers. Give "
                "samples as data=."
            )
        return error

    def _values(self, pairs: Sequence[Pair]) -> Iterator[tuple[Any, np.ndarray]]:
        for old, new in pairs:
            yield new, self.subset.gather(old, to_numpy(old))


def remove_units(
    model: Model, units: Units, removed: np.ndarray, data: Dataset
) -> Trial:
    """Return a model without some units; the original is not touched.

    Units that change what others do stay; why is noted in the reasons of the groups.

    Args:
        model: a built model.
        units: its units.
        removed: the classes that are to go.
        data: samples to check the result with; None for random numbers.

    Raises:
        ModelError: if the original does not run.
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
            f"{names}: a unit that goes changes what others do, by {errors[best]:.1e} "
            "of the largest output"
        )
        units.groups.reasons.update(dict.fromkeys(removed.tolist(), why))
        return None
    return best
