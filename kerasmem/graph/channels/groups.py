"""Groups of label classes that can be removed.

Classes of one group lie in the same tensors and weights. If one class of each group is
kept, no tensor becomes empty.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kerasmem.graph.channels.labels import OUT, Labels, components, varying
from kerasmem.graph.channels.walk import LabelledModel
from kerasmem.graph.layer_table import kind

ALONE = "its channels can only be removed all together"


@dataclass(frozen=True, eq=False)
class Groups:
    """Removable channels of a model.

    Args:
        classes: Class of every label.
        members: One array of classes per group.
        keys: Key of each group. Equal in a smaller model with the same layers.
        reasons: Reason for each class that cannot be removed.
        tied: Indices of groups that must lose the same number of classes.
        channels: Number of channels per class of each group. Empty for one channel.
        alternatives: Indices of groups. Only the first possible group of each tuple is
            pruned.
    """

    classes: np.ndarray
    members: tuple[np.ndarray, ...]
    keys: tuple[int, ...]
    reasons: dict[int, str]
    tied: tuple[tuple[int, ...], ...] = ()
    channels: tuple[int, ...] = ()
    alternatives: tuple[tuple[int, ...], ...] = ()


def find_groups(labels: Labels) -> Groups:
    """Returns the removable classes of a model, in groups."""
    groups = _untied(labels)
    ties = [(pair, _numbers(groups, *pair)) for pair in labels.tied]
    uneven = [pair for pair, numbers in ties if numbers is None]
    if uneven:
        # Impossible for some choices of classes, so these labels are removed in pairs.
        for pair in uneven:
            labels.unite(*pair)
        return find_groups(labels)
    return replace(groups, tied=_sets(numbers for _, numbers in ties if numbers))


def _numbers(
    groups: Groups, first: np.ndarray, second: np.ndarray
) -> tuple[int, ...] | None:
    """Returns two groups that tie two arrays of labels.

    Returns an empty tuple if the arrays always lose the same number of labels. Returns
    None if equal numbers of classes in two groups are not sufficient.
    """
    place = np.full(len(groups.classes), -1)
    for number, members in enumerate(groups.members):
        place[members] = number
    sides = [np.sort(groups.classes[side]).tolist() for side in (first, second)]
    numbers = [np.unique(place[side]).tolist() for side in sides]
    if sides[0] == sides[1] or numbers == [[-1], [-1]]:
        return ()
    often = {n for side in sides for n in np.unique(side, return_counts=True)[1]}
    even = len(often) == 1 and all(len(group_numbers) == 1 for group_numbers in numbers)
    return (numbers[0][0], numbers[1][0]) if even and [-1] not in numbers else None


def _sets(pairs: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Merges pairs of numbers to connected sets.

    Example:
        >>> _sets([(0, 3), (1, 2), (3, 4)])
        ((0, 3, 4), (1, 2))
    """
    ends = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    roots = components(int(ends.max(initial=-1)) + 1, ends[:, 0], ends[:, 1])
    numbers = np.unique(ends)
    return tuple(
        tuple(numbers[roots[numbers] == root].tolist())
        for root in np.unique(roots[numbers])
    )


def _untied(labels: Labels) -> Groups:
    arrays = [x.array for x in labels.tensors] + [use.labels for use in labels.uses]
    classes = _rectangular(labels, [a for a in arrays if a.size > 1])
    reasons = labels.reasons(classes)
    notes = labels.notes(classes)
    distinct = [np.unique(classes[array]) for array in arrays]
    for names in distinct:
        if len(names) == 1:
            name = int(names[0])
            reasons.setdefault(name, notes.get(name, ALONE))
    output_classes = {
        int(name)
        for use in labels.uses
        if use.role == OUT
        for name in np.unique(classes[use.labels])
    }
    free = np.array(sorted(output_classes - reasons.keys()), dtype=np.int64)
    signature = _signature(distinct, len(classes))
    members = _equals(free, signature)
    keys = tuple(int(signature[part[0]]) for part in members)
    return Groups(classes, members, keys, reasons)


def _rectangular(labels: Labels, arrays: list[np.ndarray]) -> np.ndarray:
    """Unites labels until every array loses whole slices along one axis.

    If classes vary along several axes, the last one is the channel axis.
    """
    classes = labels.classes()
    # Most arrays are excluded by their shape.
    several = [a for a in arrays if sum(size > 1 for size in a.shape) > 1]
    is_settled = False
    while not is_settled:
        is_settled = True
        for array in several:
            axes = varying(classes[array])
            if len(axes) > 1:
                labels.join(array, axes[:-1])
                classes = labels.classes()
                is_settled = False
    return classes


def _signature(arrays: list[np.ndarray], count: int) -> np.ndarray:
    # A sum of random numbers per array is equal for equal sets of arrays.
    numbers = np.random.default_rng(0).integers(1 << 62, size=len(arrays))
    signature = np.zeros(count, np.int64)
    for array, number in zip(arrays, numbers, strict=True):
        signature[array] += number
    return signature


def _equals(free: np.ndarray, signature: np.ndarray) -> tuple[np.ndarray, ...]:
    _, group = np.unique(signature[free], return_inverse=True)
    parts = [free[group == g] for g in range(group.max(initial=-1) + 1)]
    return tuple(sorted(parts, key=lambda part: int(part[0])))


Structure = frozenset[tuple[tuple[object, ...], int]]
"""Number of occurrences of a group in each kind of weight and operation."""


def structures(labelled: LabelledModel, groups: Groups) -> list[Structure]:
    """Returns the structure of each group, equal for groups of the same kind.

    The structure consists of the operations that output the channels, and the roles of
    the channels in weights. Hidden layers of all blocks have the same structure,
    regardless of their size. The residual stream has another structure.

    Source: Fang, Ma, Mi and Wang, "Isomorphic Pruning for Vision Models", 2024.
    """
    place = np.full(len(groups.classes), -1)
    for number, members in enumerate(groups.members):
        # One channel is enough: all lie in the same tensors and weights.
        place[members[0]] = number
    parts = [Counter() for _ in groups.members]

    def add(labels: np.ndarray, part: tuple[object, ...]) -> None:
        for number in np.unique(place[groups.classes[labels]]).tolist():
            if number >= 0:
                parts[number][part] += 1

    for use in labelled.labels.uses:
        name, rank = use.variable.name, len(use.variable.shape)
        add(use.labels, (use.role, name, rank, *varying(groups.classes[use.labels])))
    for call in labelled.calls.values():
        for output in call.outputs:
            add(output.array, (kind(call.operation),))
    return [frozenset(part.items()) for part in parts]
