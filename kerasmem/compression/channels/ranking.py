"""Ranks channels by importance and selects the channels to remove.

Sources: Li, Kadav, Durdanovic, Samet and Graf, "Pruning Filters for Efficient
ConvNets", 2017 (L1); He, Liu, Wang, Hu and Yang, "Filter Pruning via Geometric Median
for Deep Convolutional Neural Networks Acceleration", 2019 (FPGM); Liu, Li, Shen, Huang,
Yan and Zhang, "Learning Efficient Convolutional Networks through Network Slimming",
2017 (the scale of BatchNormalization); Molchanov, Tyree, Karras, Aila and Kautz,
"Pruning Convolutional Neural Networks for Resource Efficient Inference", 2017 (rounds
with fine-tuning).
"""

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kerasmem.compression.channels import PruneChannels
from kerasmem.errors import ConfigError
from kerasmem.graph.channels import ChannelSubset, Groups, LabelledModel
from kerasmem.graph.channels.additions import WHY, added_otherwise
from kerasmem.graph.channels.groups import structures
from kerasmem.graph.channels.labelled_calls import LabelledCall
from kerasmem.graph.channels.labels import IN, OUT, Use


def per_label(entries: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Returns the sum of all entries of each label, 0 for labels that do not occur.

    Example:
        >>> entries = np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> per_label(entries, np.array([[1, 0]]), 3).tolist()
        [6.0, 4.0, 0.0]
    """
    alone = tuple(axis for axis, size in enumerate(labels.shape) if size == 1)
    sums = entries.sum(axis=alone, keepdims=True, dtype=np.float64)
    return np.bincount(labels.ravel(), weights=sums.ravel(), minlength=count)


def distances(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns the summed distance of each slice along `axis` to all other slices.

    Example:
        >>> distances(np.array([[0.0, 1.0, 3.0]]), 1).tolist()
        [4.0, 3.0, 5.0]
    """
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    rows = rows.astype(np.float64)
    squares = np.square(rows).sum(1)
    apart = squares[:, None] + squares[None] - 2 * rows @ rows.T
    return np.sqrt(np.maximum(apart, 0)).sum(1)


def removable(size: int, ratio: float, round_to: int, min_channels: int) -> int:
    """Returns the number of channels to remove from a group of `size` channels.

    The number of remaining channels is a multiple of `round_to`, unless all are kept.

    Example:
        >>> removable(64, 0.3, 1, 1), removable(64, 0.3, 8, 1), removable(2, 0.9, 1, 2)
        (19, 16, 0)
    """
    least = max(min(min_channels, size), 1)
    stay = max(size - math.floor(ratio * size), least)
    return size - min(math.ceil(stay / round_to) * round_to, size)


def smallest(scores: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the `count` smallest scores, the first among equals."""
    return np.argsort(scores, kind="stable")[:count]


def shared_out(
    scores: Sequence[np.ndarray], ratio: float, round_to: int, min_channels: int
) -> list[int]:
    """Returns the number of channels to remove per group with a joint ranking.

    Scores are divided by the mean of their group. `min_channels` and `round_to` limit
    the number per group.

    Example:
        >>> shared_out([np.array([1.0, 1.0]), np.array([0.1, 1.9])], 0.25, 1, 1)
        [0, 1]
    """
    relative = [s / max(float(s.mean()), 1e-30) for s in scores]
    everything = np.sort(np.concatenate(relative))
    total = math.floor(ratio * everything.size)
    if total == 0:
        return [0 for _ in scores]
    limit = everything[total - 1]
    counts, remaining = [], total
    for each in relative:
        below = min(int((each <= limit).sum()), remaining)
        counts.append(removable(each.size, below / each.size, round_to, min_channels))
        remaining -= counts[-1]
    return counts


@dataclass(frozen=True)
class Round:
    """One pruning round. Each round removes the same fraction of the rest.

    The first round sets `sizes`, the number of channels of each group by group key.
    """

    number: int = 1
    count: int = 1
    sizes: dict[int, int] = field(default_factory=dict)

    def share(self, ratio: float) -> float:
        """Returns the fraction of the remaining channels to remove in this round.

        Example:
            >>> round(Round(2, 2).share(0.75), 3)
            0.5
        """
        return 1 - (1 - ratio) ** (1 / self.count) if self.count > 1 else ratio

    def so_far(self, ratio: float) -> float:
        """Returns the fraction of the original channels removed after this round.

        Example:
            >>> Round(1, 2).so_far(0.75), Round(2, 2).so_far(0.75)
            (0.5, 0.75)
        """
        if self.number == self.count:
            return ratio
        return 1 - (1 - ratio) ** (self.number / self.count)


class Ranking:
    """Ranking of the channels of a model.

    `paths` contains the path of each weight by the `id` of its variable.
    """

    def __init__(
        self,
        paths: dict[int, str],
        labelled: LabelledModel,
        groups: Groups,
        scores: np.ndarray,
        config: PruneChannels,
        this_round: Round,
    ) -> None:
        every = np.concatenate([np.zeros(0, np.int64), *groups.members])
        removable_uses = (
            use
            for use in labelled.labels.uses
            if np.isin(groups.classes[use.labels], every).any()
        )
        check_patterns(config, [paths[id(use.variable)] for use in removable_uses])
        self._labelled = labelled
        self._groups = groups
        self._uses = labelled.labels.uses
        self._config = config
        self._round = this_round
        self._scores = [scores[members] for members in groups.members]
        self._channels = groups.channels or [1 for _ in groups.members]
        makers = _makers(groups, self._uses, paths)
        self._own = [own_ratio(made_by, config) for made_by in makers]
        self._pools = self._together(labelled)

    @property
    def is_whole(self) -> bool:
        """Whether no channel was removed in earlier rounds."""
        first = self._round.sizes
        return all(
            first.get(key, self._size(n)) == self._size(n)
            for n, key in enumerate(self._groups.keys)
        )

    @property
    def largest(self) -> int:
        """Number of channels in the largest group."""
        return max(map(self._size, range(len(self._scores))))

    def _size(self, n: int) -> int:
        return len(self._scores[n]) * self._channels[n]

    def select(self, ratio: float) -> ChannelSubset:
        """Returns the remaining channels if a fraction is removed in this round.

        Keeps more channels where broadcasting would otherwise change an addition.
        """
        counts, notes = self._counts(ratio), {}
        subset = self._without(counts, notes)
        while calls := added_otherwise(self._labelled, subset):
            shrinking = self._shrinking(calls, counts)
            if not shrinking:
                counts = [0] * len(counts)  # the cause is unknown, so keep everything
            for n, name in shrinking.items():
                counts[n] = max(counts[n] - self._config.round_to, 0)
                why = WHY.format(name=name)
                notes.update(dict.fromkeys(self._groups.members[n].tolist(), why))
            self._even_out(counts)
            subset = self._without(counts, notes)
        return subset

    def _without(self, counts: Sequence[int], notes: dict[int, str]) -> ChannelSubset:
        classes = [
            members[smallest(scores, count)]
            for members, scores, count in zip(
                self._groups.members, self._scores, counts, strict=True
            )
        ]
        everything = np.concatenate([np.zeros(0, np.int64), *classes])
        return ChannelSubset(self._groups.classes, everything, self._uses, notes)

    def _shrinking(
        self, calls: Sequence[LabelledCall], counts: list[int]
    ) -> dict[int, str]:
        """Returns the groups that affect the calls, each with the name of a call."""
        names: dict[int, str] = {}
        for call in calls:
            weights = {id(v) for v in getattr(call.operation, "weights", ())}
            own_uses = [
                u for u in self._uses if u.role != IN and id(u.variable) in weights
            ]
            arrays = [u.labels for u in own_uses]
            arrays += [
                x.array for x in (*call.outputs, *([] if weights else call.inputs))
            ]
            of = np.concatenate([self._groups.classes[a].ravel() for a in arrays])
            for n, members in enumerate(self._groups.members):
                if counts[n] and np.isin(members, of).any():
                    names.setdefault(n, call.operation.name)
        return names

    def select_as_configured(self) -> ChannelSubset:
        """Returns the remaining channels for the configured ratio."""
        return self.select(self._round.share(self._config.ratio))

    def _together(self, labelled: LabelledModel) -> list[list[int]]:
        free = [n for n, own in enumerate(self._own) if own is None]
        if self._config.scope == "layer":
            return []
        if self._config.scope == "global":
            return [free] if free else []
        alike: dict[Hashable, list[int]] = {}
        every = structures(labelled, self._groups)
        for n in free:
            alike.setdefault(every[n], []).append(n)
        return list(alike.values())

    def _counts(self, ratio: float) -> list[int]:
        limits = (self._config.round_to, self._config.min_channels)
        counts = [self._count(n, ratio) for n in range(len(self._own))]
        for pool in self._pools:
            pool_counts = shared_out([self._level(n) for n in pool], ratio, *limits)
            for n, count in zip(pool, pool_counts, strict=True):
                counts[n] = count
        self._even_out(counts)
        return counts

    def _level(self, n: int) -> np.ndarray:
        """Returns the scores that rank a group among other groups.

        Groups with equal channel counts are ranked as one, by the mean of their sorted
        scores.
        """
        alike = next((numbers for numbers in self._groups.tied if n in numbers), (n,))
        relative = [np.sort(self._scores[m]) / self._scores[m].mean() for m in alike]
        return self._scores[n] if len(alike) == 1 else np.mean(relative, axis=0)

    def _even_out(self, counts: list[int]) -> None:
        for numbers in self._groups.tied:
            fewest = min(counts[n] for n in numbers)
            for n in numbers:
                counts[n] = fewest
        for ways in self._groups.alternatives:
            for n in [n for n in ways if counts[n]][1:]:
                counts[n] = 0

    def _count(self, n: int, ratio: float) -> int:
        config, own = self._config, self._own[n]
        share = ratio if own is None else self._round.share(own)
        first = size = self._size(n)
        if config.of == "channels" and self._round.count > 1:
            # Relative to the original size, so rounding errors do not accumulate.
            share = self._round.so_far(config.ratio if own is None else own)
            first = self._round.sizes.setdefault(self._groups.keys[n], size)
        each = self._channels[n]
        round_to = config.round_to // math.gcd(config.round_to, each)
        least = math.ceil(config.min_channels / each)
        count = removable(first // each, share, round_to, least)
        return max(count - (first - size) // each, 0)


def check_patterns(config: PruneChannels, paths: Sequence[str]) -> None:
    """Checks that every pattern of a config matches a path with removable channels."""
    for pattern in (*config.ignore, *(p for p, _ in config.ratios)):
        if not any(re.search(pattern, path) for path in paths):
            raise ConfigError(
                "A pattern of PruneChannels matches no path of a weight with removable "
                f"channels. Received: {pattern!r}."
            )


def own_ratio(paths: Sequence[str], config: PruneChannels) -> float | None:
    """Returns the ratio configured for a group: 0 if ignored, None by default."""
    if any(re.search(p, path) for p in config.ignore for path in paths):
        return 0.0
    for pattern, ratio in config.ratios:
        if any(re.search(pattern, path) for path in paths):
            return ratio
    return None


def _makers(groups: Groups, uses: list[Use], paths: dict[int, str]) -> list[list[str]]:
    names_by_class: dict[int, list[str]] = {int(m[0]): [] for m in groups.members}
    for use in uses:
        if use.role == OUT:
            for name in np.unique(groups.classes[use.labels]).tolist():
                if name in names_by_class:
                    names_by_class[name].append(paths[id(use.variable)])
    return list(names_by_class.values())
