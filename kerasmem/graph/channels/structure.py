"""Which groups of channels are built alike.

Source: Fang, Ma, Mi and Wang, "Isomorphic Pruning for Vision Models", 2024.
"""

from collections import Counter

import numpy as np

from kerasmem.graph.channels.groups import Groups
from kerasmem.graph.channels.labels import varying
from kerasmem.graph.channels.walk import LabelledModel
from kerasmem.graph.kinds import kind

Structure = frozenset[tuple[tuple[object, ...], int]]
"""How often a group lies in a weight of each kind and an operation of each kind."""


def structures(found: LabelledModel, groups: Groups) -> list[Structure]:
    """Return what each group is made of; equal for groups that are built alike.

    A group is what the operations are that its channels come out of, and what its
    channels do to their weights: a hidden layer of one block is built as that of the
    next, whatever their sizes, and not as the stream that goes by the blocks.
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

    for use in found.labels.uses:
        name, rank = use.variable.name, len(use.variable.shape)
        add(use.labels, (use.role, name, rank, *varying(groups.classes[use.labels])))
    for call in found.calls.values():
        for made in call.made:
            add(made.array, (kind(call.operation),))
    return [frozenset(part.items()) for part in parts]
