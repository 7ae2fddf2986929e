"""How much each of several teachers counts for each sample.

Hailin Zhang, Defang Chen, Can Wang: Confidence-Aware Multi-Teacher Knowledge
Distillation, 2022.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kerasmem.compression.distill.losses.vectors import flat, one_hot

BY_CONFIDENCE = "confidence"


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Return how wrong a classifier is, (batch,); the mean over all but the first axis.

    Args:
        logits: (batch, ..., classes).
        labels: classes as numbers, or one-hot.
    """
    each = -ops.sum(one_hot(labels, logits) * ops.log_softmax(logits), axis=-1)
    return ops.mean(flat(ops.expand_dims(each, -1)), axis=-1)


def confidences(errors: Sequence[Any]) -> list[Any]:
    """Return the share of each teacher, (batch,); those of a sample add up to 1.

    A teacher counts the less, the larger its cross-entropy is beside the others'.

    Args:
        errors: that of each of at least two teachers, (batch,).
    """
    away = ops.softmax(ops.stack(list(errors)), axis=0)
    shares = (1.0 - away) / (len(errors) - 1)
    return [shares[place] for place in range(len(errors))]


def weighted(weight: Any, share: Any) -> Any:
    """Return sample weights, or None, times the share of a teacher."""
    if weight is None:
        return share

    def product(one: Any) -> Any:
        one = ops.convert_to_tensor(one)
        column = ops.reshape(share, (-1, *[1] * (one.ndim - 1)))
        return ops.cast(one, "float32") * column

    return keras.tree.map_structure(product, weight)
