"""The channels of a model in the order in which they go, also in several rounds.

Source: Molchanov, Tyree, Karras, Aila and Kautz, "Pruning Convolutional Neural Networks
for Resource Efficient Inference", 2017 (rounds, with training in between).
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kerasmem.compression.channels.math import removable, shared_out, smallest
from kerasmem.errors import ConfigError
from kerasmem.graph.channels import Groups, Kept, LabelledModel
from kerasmem.graph.channels.additions import WHY, added_otherwise
from kerasmem.graph.channels.call import LabelledCall
from kerasmem.graph.channels.groups import structures
from kerasmem.graph.channels.labels import IN, OUT, Use

if TYPE_CHECKING:
    from kerasmem.compression.channels.config import PruneChannels


@dataclass(frozen=True)
class Round:
    """One of several rounds, each of which removes the same share of what is left.

    Args:
        number: which one it is, from 1.
        count: how many there are.
        sizes: how many channels each group had before the first round, by its key; the
            first one fills it in for the others.
    """

    number: int = 1
    count: int = 1
    sizes: dict[int, int] = field(default_factory=dict)

    def share(self, ratio: float) -> float:
        """Return the share of what is left that goes in this round.

        Example:
            >>> round(Round(2, 2).share(0.75), 3)
            0.5
        """
        return 1 - (1 - ratio) ** (1 / self.count) if self.count > 1 else ratio

    def so_far(self, ratio: float) -> float:
        """Return the share of what there was at first that is gone after this round.

        Example:
            >>> Round(1, 2).so_far(0.75), Round(2, 2).so_far(0.75)
            (0.5, 0.75)
        """
        if self.number == self.count:
            return ratio
        return 1 - (1 - ratio) ** (self.number / self.count)


class Ranking:
    """The channels of a model in the order in which they go.

    Args:
        paths: the path of each weight of the model, by its variable's `id`.
        found: the labels of the model.
        groups: what can be removed.
        scores: how much each class matters.
        choice: how to rank, and what to leave alone.
        turn: the round that this is.

    Raises:
        ConfigError: if a pattern matches no weight.
    """

    def __init__(
        self,
        paths: dict[int, str],
        found: LabelledModel,
        groups: Groups,
        scores: np.ndarray,
        choice: "PruneChannels",
        turn: Round,
    ) -> None:
        of_channels = [paths[id(use.variable)] for use in found.labels.uses]
        _check_patterns(choice, of_channels)
        self._found = found
        self._groups = groups
        self._uses = found.labels.uses
        self._choice = choice
        self._turn = turn
        self._scores = [scores[members] for members in groups.members]
        makers = _makers(groups, self._uses, paths)
        self._own = [_own_ratio(made_by, choice) for made_by in makers]
        self._pools = self._together(found)

    @property
    def is_whole(self) -> bool:
        """Whether no channel has gone in the rounds before this one."""
        first = self._turn.sizes
        return all(
            first.get(key, len(scores)) == len(scores)
            for key, scores in zip(self._groups.keys, self._scores, strict=True)
        )

    @property
    def largest(self) -> int:
        """The number of channels in the largest group."""
        return max(map(len, self._scores))

    def kept(self, ratio: float) -> Kept:
        """Return the channels that stay if this share of them goes in this round.

        Where Keras would not compute with what stays as with all, more of it stays.
        """
        counts, notes = self._counts(ratio), {}
        kept = self._without(counts, notes)
        while calls := added_otherwise(self._found, kept):
            shrinking = self._shrinking(calls, counts)
            if not shrinking:
                counts = [0] * len(counts)  # no group is seen to be the cause: all stay
            for n, name in shrinking.items():
                counts[n] = max(counts[n] - self._choice.round_to, 0)
                why = WHY.format(name=name)
                notes.update(dict.fromkeys(self._groups.members[n].tolist(), why))
            self._even_out(counts)
            kept = self._without(counts, notes)
        return kept

    def _without(self, counts: Sequence[int], notes: dict[int, str]) -> Kept:
        removed = [
            members[smallest(scores, count)]
            for members, scores, count in zip(
                self._groups.members, self._scores, counts, strict=True
            )
        ]
        everything = np.concatenate([np.zeros(0, np.int64), *removed])
        return Kept(self._groups.classes, everything, self._uses, notes)

    def _shrinking(
        self, calls: Sequence[LabelledCall], counts: list[int]
    ) -> dict[int, str]:
        """Return the groups that calls make or add up fewer channels of, with a name.

        Their number of channels is in the shapes of what is added, so there are some.
        """
        found: dict[int, str] = {}
        for call in calls:
            weights = {id(v) for v in getattr(call.operation, "weights", ())}
            made = [u for u in self._uses if u.role != IN and id(u.variable) in weights]
            arrays = [u.labels for u in made]
            arrays += [x.array for x in (*call.made, *([] if weights else call.inputs))]
            of = np.concatenate([self._groups.classes[a].ravel() for a in arrays])
            for n, members in enumerate(self._groups.members):
                if counts[n] and np.isin(members, of).any():
                    found.setdefault(n, call.operation.name)
        return found

    def kept_as_asked(self) -> Kept:
        """Return the channels that stay of the choice's own ratio."""
        return self.kept(self._turn.share(self._choice.ratio))

    def _together(self, found: LabelledModel) -> list[list[int]]:
        """Return the groups that are ranked together, by their numbers."""
        free = [n for n, own in enumerate(self._own) if own is None]
        if self._choice.scope == "layer":
            return []
        if self._choice.scope == "global":
            return [free] if free else []
        alike: dict[Hashable, list[int]] = {}
        every = structures(found, self._groups)
        for n in free:
            alike.setdefault(every[n], []).append(n)
        return list(alike.values())

    def _counts(self, ratio: float) -> list[int]:
        limits = (self._choice.round_to, self._choice.min_channels)
        counts = [self._count(n, ratio) for n in range(len(self._own))]
        for pool in self._pools:
            shared = shared_out([self._level(n) for n in pool], ratio, *limits)
            for n, count in zip(pool, shared, strict=True):
                counts[n] = count
        self._even_out(counts)
        return counts

    def _level(self, n: int) -> np.ndarray:
        """Return the scores by which a group is ranked among others.

        Groups that lose equally many channels are ranked as one: by the mean of their
        least scores, of their second least, ...
        """
        alike = next((tied for tied in self._groups.tied if n in tied), (n,))
        relative = [np.sort(self._scores[m]) / self._scores[m].mean() for m in alike]
        return self._scores[n] if len(alike) == 1 else np.mean(relative, axis=0)

    def _even_out(self, counts: list[int]) -> None:
        """Let groups lose equally many channels that must."""
        for tied in self._groups.tied:
            fewest = min(counts[n] for n in tied)
            for n in tied:
                counts[n] = fewest

    def _count(self, n: int, ratio: float) -> int:
        """Return how many channels one group loses by itself."""
        limits = (self._choice.round_to, self._choice.min_channels)
        size, own = len(self._scores[n]), self._own[n]
        if self._choice.of == "channels" and self._turn.count > 1:
            whole = self._choice.ratio if own is None else own
            return self._left_to_go(n, self._turn.so_far(whole))
        share = ratio if own is None else self._turn.share(own)
        return removable(size, share, *limits)

    def _left_to_go(self, n: int, share: float) -> int:
        """Return how many go until this share of a group's first size is gone."""
        size, key = len(self._scores[n]), self._groups.keys[n]
        if self._turn.number == 1:
            self._turn.sizes[key] = size
        first = self._turn.sizes.get(key, size)
        limits = (self._choice.round_to, self._choice.min_channels)
        return max(removable(first, share, *limits) - (first - size), 0)


def _own_ratio(paths: Sequence[str], choice: "PruneChannels") -> float | None:
    """Return the ratio of a group of its own, 0 if it stays, None if it has none."""
    if any(re.search(p, path) for p in choice.ignore for path in paths):
        return 0.0
    for pattern, ratio in choice.ratios:
        if any(re.search(pattern, path) for path in paths):
            return ratio
    return None


def _makers(groups: Groups, uses: list[Use], paths: dict[int, str]) -> list[list[str]]:
    """Return the paths of the weights that make the channels of each group."""
    found: dict[int, list[str]] = {int(m[0]): [] for m in groups.members}
    for use in uses:
        if use.role == OUT:
            for name in np.unique(groups.classes[use.labels]).tolist():
                if name in found:
                    found[name].append(paths[id(use.variable)])
    return list(found.values())


def _check_patterns(choice: "PruneChannels", paths: Sequence[str]) -> None:
    for pattern in (*choice.ignore, *(p for p, _ in choice.ratios)):
        if not any(re.search(pattern, path) for path in paths):
            raise ConfigError(
                "No weight with channels has a path that matches a pattern of "
                f"PruneChannels. Received: {pattern!r}."
            )
