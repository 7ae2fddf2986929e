"""A model of a class that builds itself, with fewer heads and hidden units.

What is made is of the same class, with other arguments and slices of the weights. Each
block keeps its best units. How they lie is found out by trying: the right layout is the
one under which the smaller model computes what the original does without them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.ranking import Round
from kerasmem.compression.channels.units import Counts, Scores, Selection
from kerasmem.compression.channels.verify import compared, difference
from kerasmem.compression.channels.widths import LAYOUTS, Width
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.arguments import Pair, Place, made_with
from kerasmem.graph.values import to_numpy

EXACT = 1e-5
"""Largest difference of outputs, relative to the largest, under the right layout."""

_TAKEN = {
    "of": ("channels", "parameters"),
    "scope": ("layer",),
    "criterion": ("l2", "l1", "group", "fpgm", "taylor", "random"),
}


@dataclass(frozen=True, eq=False)
class Remade:
    """A model with fewer units.

    Args:
        model: the smaller model.
        pairs: its weights, behind those of the original.
        error: as by `difference`.
        reasons: why some weights stay, by `id`.
    """

    model: Any
    pairs: list[Pair]
    error: float
    reasons: Mapping[int, str]


def remove_units(
    model: Any,
    widths_and_reasons: tuple[Sequence[Sequence[Width]], Mapping[int, str]],
    config: PruneChannels,
    data: Any,
    this_round: Round,
) -> Remade:
    """Return a model with fewer heads and hidden units; the original is not touched.

    Args:
        model: a built model.
        widths_and_reasons: its widths, and why others are none, from `find_widths`.
        config: how many units go, and which.
        data: samples, for the criterion `"taylor"` and the check; None for none.
        this_round: the round that this is, of several.

    Raises:
        ConfigError: if the config asks for what only a graph can tell.
        ModelError: if no unit can go, or the original does not run.
    """
    _check(config)
    widths, reasons = widths_and_reasons
    counts = Counts(model, widths, config, this_round)
    scores = Scores(model, widths, config, data)
    if getattr(model, "preprocessor", None) is not None:
        data = None  # texts, which a call of the model does not take
    selections = counts.select_as_configured()
    going = [each for each in selections if each.remaining < each.width.units]
    trial = _Trial(model, going, scores)
    stay: dict[int, str] = {}
    if going and trial.error(data) > EXACT:
        chosen, stay = _with_layouts(model, going, scores, data)
        if not chosen:
            why = "; ".join(dict.fromkeys([*stay.values(), *reasons.values()]))
            raise ModelError(
                f"The model {model.name!r} has no channels that could be removed. "
                f"Received: {why}."
            )
        if stay:
            trial = _Trial(model, chosen, scores)
        else:
            trial.fill(chosen)
    error = difference(model, trial.model, trial.subset, data) if going else 0.0
    reasons = {**reasons, **stay}
    return Remade(trial.model, trial.pairs, error, reasons)


def _check(config: PruneChannels) -> None:
    for field, takes in _TAKEN.items():
        value = getattr(config, field)
        if value not in takes:
            raise ConfigError(
                "Heads and hidden units of a model that its own class builds are as "
                "many in each block, and are chosen by their weights. Expected: "
                f"{field} in {', '.join(takes)}. Received: {field}={value!r}."
            )


def _with_layouts(
    model: Any, going: Sequence[Selection], scores: Scores, data: Any
) -> tuple[list[Selection], dict[int, str]]:
    """Return the selections under the layouts that are right, and why others stay."""
    chosen: list[Selection] = []
    reasons: dict[int, str] = {}
    for selection in going:
        trial = _Trial(model, [selection], scores)
        error, best = _best(trial, selection, data)
        trial.fill([best])
        try:
            if error > EXACT:
                difference(model, trial.model, trial.subset, data)
            chosen.append(best)
        except ModelError:
            names = ", ".join(place[-1] for place in selection.width.values)
            why = (
                f"{names}: a unit that goes changes what others do, by {error:.1e} of "
                "the largest output"
            )
            reasons |= {id(axis.variable): why for axis in selection.width.axes}
    return chosen, reasons


def _best(trial: "_Trial", selection: Selection, data: Any) -> tuple[float, Selection]:
    """Return the layout of a width that is exact, or the one of least error."""
    tried: list[tuple[float, Selection]] = []
    for layout in LAYOUTS:
        if layout.fits(selection.width):
            now = Selection(selection.width, selection.remaining, layout)
            trial.fill([now])
            tried.append((trial.error(data), now))
            if tried[-1][0] <= EXACT:
                break
    return min(tried, key=lambda pair: pair[0])


class _Trial:
    """A model with fewer units, which may turn out to be the wrong ones.

    Args:
        original: the model that it is made of.
        selections: how many units stay of each width, and how they lie.
        scores: which of them stay.

    Attributes:
        model: the smaller model.
        pairs: its weights, behind those of the original.
        subset: what stays of the weights.
    """

    def __init__(
        self, original: Any, selections: Sequence[Selection], scores: Scores
    ) -> None:
        self._original, self._scores = original, scores
        self.subset = scores.subset(selections)
        changes: dict[Place, int] = {}
        for selection in selections:
            changes |= selection.width.changes(selection.remaining)
        self.model, self.pairs = made_with(original, changes, self._values)

    def fill(self, selections: Sequence[Selection]) -> None:
        """Let others of as many units stay."""
        self.subset = self._scores.subset(selections)
        for weight, value in self._values(self.pairs):
            weight.assign(value)

    def error(self, data: Any) -> float:
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
            value = self.subset.gather(old, to_numpy(old))
            if value.shape != tuple(new.shape):
                raise ModelError(
                    f"The weight {new.path!r} would get a value of the shape "
                    f"{value.shape}, but it expects {tuple(new.shape)}. Report it."
                )
            yield new, value
