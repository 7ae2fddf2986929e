"""Channel labels of heads and hidden units in models built from constructor arguments.

The widths in the config show along which weight axes the units lie, so the calls inside
the blocks need no analysis. Every entry along such an axis has a label. A layout
assigns labels to units.
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
"""Layout of each group by number. Defaults to the first of `LAYOUTS`."""


def units_along(size: int, units: int, parts: int = 1) -> np.ndarray:
    """Returns the unit of every entry along an axis.

    If possible, the axis has `parts` runs that each contain every unit.

    Example:
        >>> units_along(6, 3).tolist(), units_along(6, 3, parts=2).tolist()
        ([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2])
    """
    each = size // units
    parts = parts if each % parts == 0 else 1
    return np.tile(np.repeat(np.arange(units), each // parts), parts)


def places(scores: np.ndarray, sections: int) -> np.ndarray:
    """Returns the rank of each unit within its section, smallest score first.

    Example:
        >>> places(np.array([3.0, 4.0, 2.0, 1.0]), 2).tolist()
        [0, 1, 1, 0]
    """
    order = np.argsort(scores.reshape(sections, -1), axis=1, kind="stable")
    return np.argsort(order, axis=1).ravel()


class Units:
    """Labels and groups of a model's heads and hidden units.

    There is one group per width. A class contains one unit of every block: the units
    with the lowest scores, then the second lowest, and further ranks. Thus every block
    loses the same number of units, each chosen within the block.

    Attributes:
        widths: Width of each group.
        labelled: Labels of the weights.
        groups: Classes of labels under the default layout.
        scores: Score of each class.
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
            # Hashed by name, because the list of widths can differ in the next round.
            keys=tuple(hash(tuple(width.values)) for width in self.widths),
            reasons=labels.reasons(classes),
            channels=tuple(width.sections for width in self.widths),
            alternatives=tuple(tuple(islice(numbers, len(way))) for way in ways),
        )

    def changes(self, removed: np.ndarray) -> dict[Place, int]:
        """Returns the changed model arguments after removing some classes."""
        changes: dict[Place, int] = {}
        for number, width in enumerate(self.widths):
            count = int(np.isin(self.members(number), removed).sum())
            if count:
                changes |= width.changes(width.units - count * width.sections)
        return changes

    def subset(self, removed: np.ndarray, layouts: Layouts) -> ChannelSubset:
        """Returns the remaining weight entries after removing some classes."""
        return ChannelSubset(self._classes(layouts), removed, self.labelled.labels.uses)

    def members(self, number: int) -> np.ndarray:
        """Returns the classes of a group, as label numbers."""
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
    """Returns the units of a model, or None if the config has no widths."""
    widths = find_widths(model)
    return Units(model, widths, config, data) if widths[0] else None


def _check(config: PruneChannels) -> None:
    for field, takes in _TAKEN.items():
        value = getattr(config, field)
        if value not in takes:
            raise ConfigError(
                "Heads and hidden units of a model built from constructor arguments "
                "are ranked by their weights, separately per block. Expected: "
                f"{field} in {', '.join(takes)}. Received: {field}={value!r}."
            )
