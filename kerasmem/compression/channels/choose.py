"""Choosing the channels of a labelled model that go."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kerasmem.compression.channels.math import removable, shared_out, smallest
from kerasmem.compression.channels.scores import class_scores
from kerasmem.errors import ConfigError
from kerasmem.graph.channels import Groups, Kept, LabelledModel
from kerasmem.graph.channels.cost import multiplications, parameters
from kerasmem.graph.channels.labels import OUT, Use

if TYPE_CHECKING:
    from kerasmem.compression.channels.config import PruneChannels

COSTS = {"parameters": parameters, "multiplications": multiplications}

_HALVINGS = 10


def kept_channels(
    found: LabelledModel, groups: Groups, choice: "PruneChannels"
) -> Kept:
    """Return the channels that stay.

    Raises:
        ConfigError: if a pattern matches no weight.
    """
    ranking = Ranking(groups, found.labels.uses, choice)
    if choice.of == "channels":
        return ranking.kept(choice.ratio)
    cost = COSTS[choice.of]
    wanted = (1 - choice.ratio) * cost(found, ranking.kept(0.0))
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if cost(found, ranking.kept(middle)) > wanted:
            low = middle
        else:
            high = middle
    return ranking.kept(min(high, 1 - 2**-_HALVINGS))


class Ranking:
    """The channels of a model in the order in which they go.

    Args:
        groups: what can be removed.
        uses: the labels of weights.
        choice: how to rank, and what to leave alone.
    """

    def __init__(
        self, groups: Groups, uses: list[Use], choice: "PruneChannels"
    ) -> None:
        _check_patterns(choice, uses)
        self._groups = groups
        self._uses = uses
        self._choice = choice
        makers = _makers(groups, uses)
        own = [_own_ratio(paths, choice) for paths in makers]
        self._open = [
            (members, ratio)
            for members, ratio in zip(groups.members, own, strict=True)
            if ratio != 0
        ]
        self._scores = class_scores(uses, groups.classes, choice.criterion, choice.seed)

    def kept(self, ratio: float) -> Kept:
        """Return the channels that stay if this share of them goes."""
        removed = [
            members[smallest(self._scores[members], count)]
            for (members, _), count in zip(self._open, self._counts(ratio), strict=True)
        ]
        everything = np.concatenate([np.zeros(0, np.int64), *removed])
        return Kept(self._groups.classes, everything, self._uses)

    def _counts(self, ratio: float) -> list[int]:
        limits = (self._choice.round_to, self._choice.min_channels)
        counts = [
            removable(len(members), ratio if own is None else own, *limits)
            for members, own in self._open
        ]
        if self._choice.scope == "global":
            ranked = [n for n, (_, own) in enumerate(self._open) if own is None]
            scores = [self._scores[self._open[n][0]] for n in ranked]
            shared = shared_out(scores, ratio, *limits) if scores else []
            for n, count in zip(ranked, shared, strict=True):
                counts[n] = count
        return counts


def _own_ratio(paths: Sequence[str], choice: "PruneChannels") -> float | None:
    """Return the ratio of a group of its own, 0 if it stays, None if it has none."""
    if any(re.search(p, path) for p in choice.ignore for path in paths):
        return 0.0
    for pattern, ratio in choice.ratios:
        if any(re.search(pattern, path) for path in paths):
            return ratio
    return None


def _makers(groups: Groups, uses: list[Use]) -> list[list[str]]:
    """Return the paths of the weights that make the channels of each group."""
    found: dict[int, list[str]] = {int(m[0]): [] for m in groups.members}
    for use in uses:
        if use.role == OUT:
            for name in np.unique(groups.classes[use.labels]).tolist():
                if name in found:
                    found[name].append(use.variable.path)
    return list(found.values())


def _check_patterns(choice: "PruneChannels", uses: list[Use]) -> None:
    paths = [use.variable.path for use in uses]
    for pattern in (*choice.ignore, *(p for p, _ in choice.ratios)):
        if not any(re.search(pattern, path) for path in paths):
            raise ConfigError(
                "No weight with channels has a path that matches a pattern of "
                f"PruneChannels. Received: {pattern!r}."
            )
