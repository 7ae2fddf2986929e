"""Heads and hidden units: how many go, which matter least, what stays of weights."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.choose import fewest
from kerasmem.compression.channels.ranking import (
    Round,
    check_patterns,
    own_ratio,
    removable,
)
from kerasmem.compression.channels.scores import weight_scores
from kerasmem.compression.channels.widths import LAYOUTS, Axis, Layout, Width
from kerasmem.graph.channels import ChannelSubset
from kerasmem.graph.channels.labels import CHANNEL, OUT, Use, axis_of
from kerasmem.graph.layers import weights


@dataclass(frozen=True)
class Selection:
    """How many units of a width stay, and how they lie."""

    width: Width
    remaining: int
    layout: Layout = LAYOUTS[0]


def labels(size: int, units: int, parts: int = 1) -> np.ndarray:
    """Return the unit of every entry along an axis.

    Args:
        size: length of the axis, a multiple of `units`.
        units: number of units.
        parts: runs along the axis in each of which every unit occurs, if it divides.

    Example:
        >>> labels(6, 3).tolist(), labels(6, 3, parts=2).tolist()
        ([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2])
    """
    each = size // units
    parts = parts if each % parts == 0 else 1
    return np.tile(np.repeat(np.arange(units), each // parts), parts)


def stays(scores: np.ndarray, remaining: int, sections: int) -> np.ndarray:
    """Return a bool for every unit: whether it stays.

    Args:
        scores: how much each unit matters.
        remaining: how many stay, a multiple of `sections`.
        sections: equal runs of units, of each of which as many stay.

    Example:
        >>> stays(np.array([3.0, 4.0, 1.0, 2.0]), 2, 2).tolist()
        [False, True, False, True]
    """
    runs = scores.reshape(sections, -1)
    count = runs.shape[1] - remaining // sections
    gone = np.argsort(runs, axis=1, kind="stable")[:, :count]
    mask = np.ones(runs.shape, bool)
    np.put_along_axis(mask, gone, values=False, axis=1)
    return mask.ravel()


def _use(axis: Axis, labels: np.ndarray, role: str) -> Use:
    along = axis_of(labels, axis.axis, len(axis.variable.shape))
    return Use(axis.variable, role, along, silenced=True)


_NONE = np.zeros(0, np.int64)


class Scores:
    """How much units matter: by the entries of weights that are theirs.

    Args:
        model: a built model, compiled for the criterion `"taylor"`.
        widths: its widths, of each the ways to lose units.
        config: the criterion, and the seed of the random one.
        data: samples with labels, for the criterion `"taylor"`.

    Raises:
        ConfigError: if data is missing.
        ModelError: if the criterion takes a loss and the model has none.
    """

    def __init__(
        self,
        model: Any,
        widths: Sequence[Sequence[Width]],
        config: PruneChannels,
        data: Any,
    ) -> None:
        axes = {
            (id(axis.variable), axis.axis): axis
            for ways in widths
            for width in ways
            for axis in width.axes
        }
        ends = np.cumsum([axis.size for axis in axes.values()])
        places = np.split(np.arange(ends[-1]), ends[:-1])
        uses = [
            _use(axis, place, OUT)
            for axis, place in zip(axes.values(), places, strict=True)
        ]
        scores = weight_scores(model, uses, np.arange(ends[-1]), config, data)
        self._along = {
            key: scores[place] for key, place in zip(axes, places, strict=True)
        }

    def subset(self, selections: Sequence[Selection]) -> ChannelSubset:
        """Return what stays of the weights, the units that matter most."""
        uses, removed, count = list[Use](), [_NONE], 0
        for selection in selections:
            for axes, scores in self._by_unit(selection):
                kept = stays(scores, selection.remaining, selection.width.sections)
                removed.append(count + np.flatnonzero(~kept))
                uses += [_use(axis, count + of, CHANNEL) for axis, of in axes]
                count += len(kept)
        return ChannelSubset(np.arange(count), np.concatenate(removed), uses)

    def _by_unit(
        self, selection: Selection
    ) -> Iterator[tuple[list[tuple[Axis, np.ndarray]], np.ndarray]]:
        """Yield what loses the same units: axes with their labels, and all scores."""
        width, layout = selection.width, selection.layout
        together: dict[int, list[tuple[Axis, np.ndarray]]] = {}
        for axis in width.axes:
            of = labels(axis.size, width.units, layout.parts)
            together.setdefault(layout.key(axis), []).append((axis, of))
        for axes in together.values():
            scores = np.zeros(width.units)
            for axis, of in axes:
                along = self._along[id(axis.variable), axis.axis]
                scores += np.bincount(of, along, width.units)
            yield axes, scores


class Counts:
    """How many units of each width go.

    Args:
        model: a built model.
        widths: its widths, of each the ways to lose units.
        config: how many are to go.
        this_round: the round that this is, of several.

    Raises:
        ConfigError: if a pattern matches no weight.
    """

    def __init__(
        self,
        model: Any,
        widths: Sequence[Sequence[Width]],
        config: PruneChannels,
        this_round: Round,
    ) -> None:
        self._weights = [weight.variable for weight in weights(model)]
        self._widths, self._config, self._round = widths, config, this_round
        paths = {id(w.variable): w.path for w in weights(model)}
        names = [
            sorted({paths[id(axis.variable)] for width in ways for axis in width.axes})
            for ways in widths
        ]
        check_patterns(config, [name for each in names for name in each])
        self._own = [own_ratio(each, config) for each in names]

    def select_as_configured(self) -> list[Selection]:
        """Return how many units stay of each width by the config's own ratio.

        Raises:
            ModelError: if not even the fewest save as much as is asked for.
        """
        ratio = self._round.share(self._config.ratio)
        if self._config.of == "channels":
            return self.select(ratio)
        whole = self._parameters([])
        return fewest(
            self.select,
            lambda selections: self._parameters(selections) / whole,
            1 - ratio,
            self._config.of,
        )

    def select(self, ratio: float) -> list[Selection]:
        """Return how many units stay of each width if this share of them goes."""
        selections = []
        for number, ways in enumerate(self._widths):
            each = [
                Selection(width, self._remaining(width, (number, way), ratio))
                for way, width in enumerate(ways)
            ]
            going = (
                selection
                for selection in each
                if selection.remaining < selection.width.units
            )
            selections.append(next(going, each[0]))
        return selections

    def _remaining(self, width: Width, key: tuple[int, int], ratio: float) -> int:
        config, own = self._config, self._own[key[0]]
        share, first = ratio if own is None else self._round.share(own), width.units
        if config.of == "channels" and self._round.count > 1:
            share = self._round.so_far(config.ratio if own is None else own)
            # Widths are in the order of the config in every round.
            first = self._round.sizes.setdefault(2 * key[0] + key[1], width.units)
        each = first // width.sections
        least = -(-config.min_channels // width.sections)
        step = config.round_to // math.gcd(config.round_to, width.sections)
        remaining = each - removable(each, share, step, least)
        return min(remaining * width.sections, width.units)

    def _parameters(self, selections: Sequence[Selection]) -> int:
        shapes = {id(v): list(v.shape) for v in self._weights}
        for selection in selections:
            for axis in selection.width.axes:
                size = axis.size * selection.remaining // selection.width.units
                shapes[id(axis.variable)][axis.axis] = size
        return sum(map(math.prod, shapes.values()))
