"""How much each channel of a model matters, by a criterion."""

from collections.abc import Iterator

import numpy as np

from kerasmem.compression.channels.math import distances, per_label
from kerasmem.graph.channels.arrays import varying
from kerasmem.graph.channels.labels import CHANNEL, OUT, Use
from kerasmem.graph.values import to_numpy

CRITERIA = ("l1", "l2", "group", "batch_norm", "fpgm", "random")


def class_scores(
    uses: list[Use], classes: np.ndarray, criterion: str, seed: int
) -> np.ndarray:
    """Return the score of every class; the smallest go first.

    Args:
        uses: the labels of the weights of a model.
        classes: the class of every label.
        criterion: one of `CRITERIA`.
        seed: for the random one.
    """
    count = len(classes)
    if criterion == "random":
        return np.random.default_rng(seed).random(count)
    total = np.zeros(count)
    for entries, labels in _entries(uses, classes, criterion):
        total += per_label(entries, labels, count)
    return total


def _entries(
    uses: list[Use], classes: np.ndarray, criterion: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for use in uses:
        if not _counts(use, criterion):
            continue
        values = to_numpy(use.variable).astype("float32", copy=False)
        axes = varying(classes[use.labels])
        if criterion == "fpgm" and axes:
            apart = distances(values, axes[0])
            line = np.moveaxis(classes[use.labels], axes[0], 0)
            names = line.reshape(line.shape[0], -1)[:, 0]
            yield apart, names
        elif criterion in ("l1", "batch_norm"):
            yield np.abs(values), classes[use.labels]
        else:
            yield np.square(values), classes[use.labels]


def _counts(use: Use, criterion: str) -> bool:
    if criterion == "group":
        return True
    if criterion == "batch_norm":
        return use.role == CHANNEL and use.variable.name == "gamma"
    return use.role == OUT
