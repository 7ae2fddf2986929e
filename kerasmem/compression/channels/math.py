"""Which channels matter least, on NumPy arrays.

Sources: Li, Kadav, Durdanovic, Samet and Graf, "Pruning Filters for Efficient
ConvNets", 2017 (L1); He, Liu, Wang, Hu and Yang, "Filter Pruning via Geometric Median
for Deep Convolutional Neural Networks Acceleration", 2019 (FPGM); Liu, Li, Shen, Huang,
Yan and Zhang, "Learning Efficient Convolutional Networks through Network Slimming",
2017 (the scale of BatchNormalization).
"""

import math
from collections.abc import Sequence

import numpy as np


def per_label(entries: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of all entries of each label.

    Args:
        entries: one number for each entry of a weight.
        labels: int array that broadcasts against `entries`.
        count: number of labels there are.

    Returns:
        One sum per label, 0 for labels that do not occur.

    Example:
        >>> entries = np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> per_label(entries, np.array([[1, 0]]), 3).tolist()
        [6.0, 4.0, 0.0]
    """
    alone = tuple(axis for axis, size in enumerate(labels.shape) if size == 1)
    sums = entries.sum(axis=alone, keepdims=True, dtype=np.float64)
    return np.bincount(labels.ravel(), weights=sums.ravel(), minlength=count)


def distances(values: np.ndarray, axis: int) -> np.ndarray:
    """Return for each slice along `axis` the sum of its distances to all others.

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
    """Return how many of `size` equals to remove.

    Args:
        size: how many there are.
        ratio: share to remove, in [0, 1).
        round_to: what stays is a multiple of this, or everything stays.
        min_channels: at least so many stay.

    Example:
        >>> removable(64, 0.3, 1, 1), removable(64, 0.3, 8, 1), removable(2, 0.9, 1, 2)
        (19, 16, 0)
    """
    least = max(min(min_channels, size), 1)
    stay = max(size - math.floor(ratio * size), least)
    return size - min(math.ceil(stay / round_to) * round_to, size)


def smallest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the `count` smallest scores, the first among equals."""
    return np.argsort(scores, kind="stable")[:count]


def shared_out(
    scores: Sequence[np.ndarray], ratio: float, round_to: int, min_channels: int
) -> list[int]:
    """Return how many to remove from each group if all of them are ranked together.

    Scores are compared after division by the mean of their group. A group gives at
    most what `min_channels` and `round_to` leave it.

    Example:
        >>> shared_out([np.array([1.0, 1.0]), np.array([0.1, 1.9])], 0.25, 1, 1)
        [0, 1]
    """
    relative = [s / max(float(s.mean()), 1e-30) for s in scores]
    everything = np.sort(np.concatenate(relative))
    wanted = math.floor(ratio * everything.size)
    if wanted == 0:
        return [0 for _ in scores]
    limit = everything[wanted - 1]
    counts, left = [], wanted
    for each in relative:
        below = min(int((each <= limit).sum()), left)
        counts.append(removable(each.size, below / each.size, round_to, min_channels))
        left -= counts[-1]
    return counts
