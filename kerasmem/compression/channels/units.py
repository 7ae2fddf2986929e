"""Heads and hidden units as labels of channels, for models that their own class builds.

Of the calls in their blocks nothing has to be known: the widths in the config show in
which weights units are. Every entry along such an axis has a label. A layout says which
labels are of one unit, and so what the classes are that the ranking of channels sees.
"""

from collections.abc import Mapping
from itertools import chain, islice

import numpy as np

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.scores import weight_scores
from kerasmem.compression.channels.widths import LAYOUTS, Layout, Widths, find_widths
from kerasmem.errors import ConfigError
from kerasmem.graph.arguments import Place
from kerasmem.graph.channels import ChannelSubset, Groups, LabelledModel
from kerasmem.graph.channels.labels import CHANNEL, OUT, Labels, Use, axis_of
from kerasmem.graph.layers import weights
from kerasmem.types import Dataset, Model

_TAKEN = {
    "of": ("channels", "parameters"),
    "scope": ("layer",),
    "criterion": ("l2", "l1", "group", "fpgm", "taylor", "random"),
}

Layouts = Mapping[int, Layout]
"""How units lie, by the number of their group; the first of `LAYOUTS` if not named."""


def units_along(size: int, units: int, parts: int = 1) -> np.ndarray:
    """Return the unit of every entry along an axis.

    Args:
        size: length of the axis, a multiple of `units`.
        units: number of units.
        parts: runs along the axis in each of which every unit occurs, if it divides.

    Example:
        >>> units_along(6, 3).tolist(), units_along(6, 3, parts=2).tolist()
        ([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2])
    """
    each = size // units
    parts = parts if each % parts == 0 else 1
    return np.tile(np.repeat(np.arange(units), each // parts), parts)


def places(scores: np.ndarray, sections: int) -> np.ndarray:
    """Return the place of each unit in the order of scores, the smallest first.

    Args:
        scores: the score of each unit.
        sections: number of equal runs of units, each of which is ordered by itself.

    Example:
        >>> places(np.array([3.0, 4.0, 2.0, 1.0]), 2).tolist()
        [0, 1, 1, 0]
    """
    order = np.argsort(scores.reshape(sections, -1), axis=1, kind="stable")
    return np.argsort(order, axis=1).ravel()


class Units:
    """The labels and groups of a model's heads and hidden units.

    There is one group for each width. A class of it is one unit of every block: of each
    the one that matters least, of each the next, and so on. So every block loses as
    many units, and its own.

    Args:
        model: a built model, compiled for the criterion `"taylor"`.
        widths: its widths, and why weights of others stay, from `find_widths`.
        config: the criterion, and the seed of the random one.
        data: samples with labels, for the criterion `"taylor"`.

    Attributes:
        widths: the width of each group.
        labelled: the labels of weights.
        groups: the classes of labels, as units lie mostly.
        scores: the score of each class.

    Raises:
        ConfigError: if data is missing, or the config takes what a graph tells.
        ModelError: if the criterion takes a loss and the model has none.
    """

    def __init__(
        self, model: Model, widths: Widths, config: PruneChannels, data: Dataset
    ) -> None:
        _check(config)
        ways, reasons = widths
        self.widths = list(chain.from_iterable(ways))
        self.labelled = LabelledModel(Labels(), {}, {}, {})
        labels = self.labelled.labels
        self._labels = [[labels.fresh(a.size) for a in w.axes] for w in self.widths]
        for width, entries in zip(self.widths, self._labels, strict=True):
            for axis, own in zip(width.axes, entries, strict=True):
                along = axis_of(own, axis.axis, len(axis.variable.shape))
                labels.uses.append(Use(axis.variable, OUT, along, silenced=True))
        for variable in (weight.variable for weight in weights(model)):
            if why := reasons.get(id(variable)):
                stays = labels.frozen(len(variable.shape), why)
                labels.weigh(variable, CHANNEL, stays)
        each = np.arange(labels.count)
        self._scores = weight_scores(model, labels.uses, each, config, data)
        classes = self._classes({})
        self.scores = np.bincount(classes, self._scores, labels.count)
        numbers = iter(range(len(self.widths)))
        self.groups = Groups(
            classes,
            members=tuple(map(self.members, range(len(self.widths)))),
            # Of the names: in the next round there may be other ways.
            keys=tuple(hash(tuple(width.values)) for width in self.widths),
            reasons=labels.reasons(classes),
            channels=tuple(width.sections for width in self.widths),
            alternatives=tuple(tuple(islice(numbers, len(way))) for way in ways),
        )

    def changes(self, removed: np.ndarray) -> dict[Place, int]:
        """Return the arguments of a model without the units of some classes."""
        changes: dict[Place, int] = {}
        for number, width in enumerate(self.widths):
            count = int(np.isin(self.members(number), removed).sum())
            if count:
                changes |= width.changes(width.units - count * width.sections)
        return changes

    def subset(self, removed: np.ndarray, layouts: Layouts) -> ChannelSubset:
        """Return what stays of the weights without some classes."""
        return ChannelSubset(self._classes(layouts), removed, self.labelled.labels.uses)

    def members(self, number: int) -> np.ndarray:
        """Return the classes of a group: numbers that are labels of it."""
        width = self.widths[number]
        return self._labels[number][0][: width.units // width.sections]

    def _classes(self, layouts: Layouts) -> np.ndarray:
        classes = np.arange(self.labelled.labels.count)
        for number, width in enumerate(self.widths):
            layout = layouts.get(number, LAYOUTS[0])
            together: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
            for axis, labels in zip(width.axes, self._labels[number], strict=True):
                units = units_along(axis.size, width.units, layout.parts)
                together.setdefault(layout.key(axis), []).append((labels, units))
            for parts in together.values():
                labels, units = map(np.concatenate, zip(*parts, strict=True))
                scores = np.bincount(units, self._scores[labels], width.units)
                order = places(scores, width.sections)
                classes[labels] = self.members(number)[order[units]]
        return classes


def units_of(model: Model, config: PruneChannels, data: Dataset) -> Units | None:
    """Return the units of a model; see `Units`. None if its config has no widths.

    Raises:
        ModelError: as `find_widths` does.
    """
    widths = find_widths(model)
    return Units(model, widths, config, data) if widths[0] else None


def _check(config: PruneChannels) -> None:
    for field, takes in _TAKEN.items():
        value = getattr(config, field)
        if value not in takes:
            raise ConfigError(
                "Heads and hidden units of a model that its own class builds are as "
                "many in each block, and are chosen by their weights. Expected: "
                f"{field} in {', '.join(takes)}. Received: {field}={value!r}."
            )
