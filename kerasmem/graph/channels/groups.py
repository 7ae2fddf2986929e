"""The classes of labels that can be removed, in groups of equals.

Classes of one group lie in the same tensors and weights. As long as one class of each
group stays, nothing becomes empty.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kerasmem.graph.channels.labels import OUT, Labels, components, varying
from kerasmem.graph.channels.walk import LabelledModel
from kerasmem.graph.layer_table import kind

ALONE = "all of its channels would have to go together"


@dataclass(frozen=True, eq=False)
class Groups:
    """What can be removed from a model.

    Args:
        classes: the class of every label.
        members: one array of classes per group.
        keys: a number per group that tells which tensors and weights it lies in, by
            their place in the model: equal in a smaller model of the same layers.
        reasons: every class that must stay, with why.
        tied: the numbers of groups that lose equally many classes.
        channels: how many channels of a layer a class of each group is; one if empty.
        alternatives: the numbers of groups of which only one loses classes: the first
            that can.
    """

    classes: np.ndarray
    members: tuple[np.ndarray, ...]
    keys: tuple[int, ...]
    reasons: dict[int, str]
    tied: tuple[tuple[int, ...], ...] = ()
    channels: tuple[int, ...] = ()
    alternatives: tuple[tuple[int, ...], ...] = ()


def find_groups(labels: Labels) -> Groups:
    """Return the classes of a model that can be removed, in groups."""
    groups = _untied(labels)
    ties = [(pair, _numbers(groups, *pair)) for pair in labels.tied]
    uneven = [pair for pair, numbers in ties if numbers is None]
    if uneven:
        # Not for every choice of classes: then these labels go in pairs.
        for pair in uneven:
            labels.unite(*pair)
        return find_groups(labels)
    return replace(groups, tied=_sets(numbers for _, numbers in ties if numbers))


def _numbers(
    groups: Groups, first: np.ndarray, second: np.ndarray
) -> tuple[int, ...] | None:
    """Return two groups that lose equally many classes if two arrays of labels do.

    Empty if the arrays lose equally many labels whatever goes; None if that takes more
    than to remove equally many classes of two groups.
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
    """Return the connected sets of numbers that pairs of them make.

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
    """Unite labels until every array loses whole slices along one axis; the classes.

    Where classes change along several axes, the last one is the axis of channels.
    """
    classes = labels.classes()
    # The shape of the arrays alone excludes most of them.
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
    # The sum of random numbers of the arrays: equal for equal sets of them.
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
"""How often a group lies in a weight of each kind and an operation of each kind."""


def structures(labelled: LabelledModel, groups: Groups) -> list[Structure]:
    """Return what each group is made of; equal for groups that are built alike.

    A group is what the operations are that its channels come out of, and what its
    channels do to their weights: a hidden layer of one block is built as that of the
    next, whatever their sizes, and not as the stream that goes by the blocks.

    Source: Fang, Ma, Mi and Wang, "Isomorphic Pruning for Vision Models", 2024.
    """
    place = np.full(len(groups.classes), -1)
    for number, members in enumerate(groups.members):
        # One channel stands for all: they lie in the same tensors and weights.
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
